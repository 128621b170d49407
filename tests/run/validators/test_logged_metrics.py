from lmtrain.run.validators.callbacks import logged_metrics
from tests.configs import config_of

MIXTURE = ("data=mixture", "+data.sources.web.path=a", "+data.sources.code.path=b")


def test_a_mixture_logs_each_source_and_no_average_of_weights_that_it_does_not_keep() -> None:
    assert logged_metrics(config_of(*MIXTURE)) == [
        "validation/bits_per_byte",
        "validation/loss",
        "train/loss",
        "validation/web/bits_per_byte",
        "validation/code/bits_per_byte",
    ]
    assert "validation/ema_loss" in logged_metrics(config_of("weight_average=ema"))
