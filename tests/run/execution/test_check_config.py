"""A whole config is checked, and the first thing that is wrong is named by its key."""

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.check_config import check_config


def test_a_composed_config_passes_with_its_amounts_as_numbers() -> None:
    checked = check_config(compose_config(["budget.tokens=2M", "gradient_clip_norm=1"]), allowed=[])
    assert checked.budget.tokens == 2_000_000
    assert checked.values["budget"]["tokens"] == 2_000_000
    assert checked.gradient_clip_norm == 1.0


def test_a_root_key_added_by_mistake_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"optimiser=1 is not a key of a run\. Did you mean 'optimizer'\?"):
        check_config(compose_config(["+optimiser=1"]), allowed=[])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=abc", "seed=abc is not a number"),
        ("gradient_clip_norm=[1]", r"gradient_clip_norm=\[1\] is not of type float or null\."),
        ("batch.micro_batch_sequences=many", "micro_batch_sequences='many' is not of type int or auto or null"),
        ("gradient_clip_norm=-1", "gradient_clip_norm=-1 is not a finite number above 0"),
        ("gradient_clip_norm=nan", "gradient_clip_norm=nan is not a finite number above 0"),
        ("gradient_clip_norm=inf", "gradient_clip_norm=inf is not a finite number above 0"),
        ("seed=-3", r"seed=-3 is not at least 0 and below 2\*\*63; nearest valid: 3"),
        ("seed=99999999999999999999", "seed=99999999999999999999 is not at least 0"),
        ("+model.widht=8", r"model\.widht=8 is not a setting of this node.*Did you mean 'width'"),
        ("+callbacks.checkpoint.keep=3", r"callbacks\.checkpoint\.keep=3 is not a setting"),
        ("+precision.stochastic_rounding=true", r"precision\.stochastic_rounding=True .* it has none\."),
        ("model._target_=os.system", r"model\._target_=os\.system is not allowed"),
        ("data=shards", r"data\.folder\.path has no value; set it on the command line"),
    ],
)
def test_the_first_thing_that_is_wrong_is_refused_under_its_full_key(override: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_config(compose_config([override]), allowed=[])
