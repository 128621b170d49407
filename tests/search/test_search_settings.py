import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trials": 0}, "sweep.trials=0 is below 1"),
        ({"max_usd": 0.0}, "sweep.max_usd=0.0 is no finite amount above 0"),
        ({"metric": "validation/bit_per_byte"}, "Did you mean 'validation/bits_per_byte'?"),
        ({"pruner": "halving"}, "nearest valid: sweep.sampler=random"),
        ({"slurm": {"slurm_partition": "gpu"}}, "sweep.slurm is of sweep.launcher=slurm alone"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SearchSettings(**settings)
    assert words in str(refused.value)


def test_a_grid_is_as_large_as_it_is() -> None:
    assert SearchSettings(sampler="grid").num_trials is None
    assert SearchSettings().num_trials == 20
    assert SearchSettings(metric="validation/code/bits_per_byte", sampler="grid", trials=3).num_trials == 3
