import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.builders.precision import build_precision
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.validators.float8_head import require_float8_head
from tests.configs import config_of


def config(*words):
    return config_of("precision=fp8", *words)


def test_it_is_off_unless_asked_for():
    assert config().precision.get("head") is False
    for words in (["loss=liger"], ["precision=bf16_mixed"], ["precision.head=true", "loss=chunked"]):
        require_float8_head(config(*words))


@pytest.mark.parametrize("loss", ["cross_entropy", "liger", "linear", "z_loss"])
@pytest.mark.parametrize("read", [build_precision, lambda config: planned_setting(config)])
def test_a_loss_that_leaves_the_products_to_others_is_refused_by_runs_and_plans(loss, read):
    with pytest.raises(ConfigurationError, match=r"precision\.head=true needs a loss .* nearest valid: loss=chunked"):
        read(config("precision.head=true", f"loss={loss}"))


def test_what_is_neither_true_nor_false_is_refused():
    with pytest.raises(ConfigurationError, match=r"precision\.head=3 is not of type bool; nearest valid: false"):
        require_float8_head(config("precision.head=3"))
