import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.trials import single, trials_of


@pytest.mark.parametrize(
    "words",
    [
        ["seed=1,2", "optimizer=adamw,muon", "optimizer.lr=1e-3"],
        ["seed=range(1,4)", "+a='x, y'", "++b=[1,2],[3]", "c=choice(1,2)", "d=null"],
        ["seed=1"],
    ],
)
def test_trials_are_those_of_hydras_own_sweeper(words: list[str]) -> None:
    parsed = OverridesParser.create().parse_overrides(words)
    assert [trials_of(words, swept={})] == BasicSweeper.split_arguments(parsed, None)


def test_an_option_may_name_values_and_a_typed_key_wins() -> None:
    assert trials_of(["seed=7"], swept={"seed": "1,2", "model": "a,b"}) == [
        ["model=a", "seed=7"],
        ["model=b", "seed=7"],
    ]


def test_a_key_that_is_taken_away_stays_as_typed() -> None:
    assert trials_of(["~callbacks.progress", "seed=1,2"], swept={}) == [
        ["~callbacks.progress", "seed=1"],
        ["~callbacks.progress", "seed=2"],
    ]


def test_words_of_one_value_are_told_apart() -> None:
    assert single(["seed=1,2", "model=a", "x=[1,2]"]) == ["model=a", "x=[1,2]"]


def test_a_range_without_steps_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"interval\(0,1\) has no steps"):
        trials_of(["lr=interval(0,1)"], swept={})
