import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.measured_model import measure_model
from lmtrain.run.planning.setting import planned_setting
from tests.configs import config_of


def measured(*words):
    composed = config_of("cluster=h100_8x", "compile=none", *words)
    return measure_model(composed, planned_setting(composed))


def test_a_model_that_cannot_be_built_is_refused_by_key():
    with pytest.raises(ConfigurationError, match=r"model\."):
        measured("model.num_heads=3")
    with pytest.raises(ConfigurationError, match=r"model=.* cannot be built: Storage size .* overflowed"):
        measured(f"model.vocab_size={2**62}")
