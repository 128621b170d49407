import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.measured_model import measure_model
from lmtrain.run.planning.setting import planned_setting
from tests.configs import config_of


def measured(*words):
    composed = config_of("cluster=h100_8x", "compile=none", *words)
    return measure_model(composed, planned_setting(composed))


def test_the_facts_are_those_of_the_model_that_would_train():
    facts = measured("model=gpt2_124m", "batch.context_tokens=1024")
    assert facts.shape.num_parameters == 124_439_808
    assert len(facts.shape.attention) == 12
    assert facts.activations.per_sequence > 1024 * 768 * 2 * 12


def test_a_model_that_cannot_be_built_is_refused_by_key():
    with pytest.raises(ConfigurationError, match=r"model\."):
        measured("model.num_heads=3")
    with pytest.raises(ConfigurationError, match=r"model=.* cannot be built: Storage size .* overflowed"):
        measured(f"model.vocab_size={2**62}")
