import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.node import Node
from lmtrain.run.sweeps.search_metric import require_metric
from lmtrain.search.search_settings import SearchSettings
from tests.configs import config_of, config_with, default_config

MIXTURE = ("data=mixture", "+data.sources.web.path=a", "+data.sources.code.path=b")


def test_a_metric_that_no_trial_logs_is_refused_with_the_nearest_one() -> None:
    config = config_of(*MIXTURE)
    require_metric(config, SearchSettings(metric="validation/code/bits_per_byte"))
    with pytest.raises(
        ConfigurationError, match=r"is logged by no trial; .*Did you mean 'validation/code/bits_per_byte'"
    ):
        require_metric(config, SearchSettings(metric="validation/coed/bits_per_byte"))


def test_a_callback_of_somebody_else_may_log_more_than_is_known() -> None:
    settings = SearchSettings(metric="validation/mine/loss")
    with pytest.raises(ConfigurationError, match="is logged by no trial"):
        require_metric(default_config(), settings)
    callbacks = {**default_config().callbacks, "mine": Node("callbacks.mine", {"_target_": "mine.Callback"})}
    require_metric(config_with(callbacks=callbacks), settings)
