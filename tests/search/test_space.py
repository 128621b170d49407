import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.search.space import (
    Interval,
    ListedValues,
    checked_words,
    grid_of,
    interval,
    num_of_grid,
    require_space,
    words_of,
)

SPACE = {
    "optimizer.lr": Interval(low=1e-4, high=1e-2, is_log=True),
    "model.num_layers": Interval(low=2, high=8, step=2),
    "optimizer": ListedValues(values=("adamw", "muon")),
}


def test_drawn_values_are_typed_words() -> None:
    values = {"optimizer.lr": 0.00123456789, "model.num_layers": 4, "optimizer": "muon"}
    assert words_of(SPACE, values) == ["optimizer.lr=0.00123457", "model.num_layers=4", "optimizer=muon"]


def test_bounds_are_kept_whole_and_no_drawn_value_leaves_them() -> None:
    assert Interval(low=1_000_000, high=1_234_567, step=1).describe() == "int(interval(1000000,1234567))"
    assert Interval(low=0, high=1_234_566, step=2).describe() == "range(0,1234567,2)"
    near = Interval(low=0.9, high=0.9999999)
    assert (near.describe(), near.word(0.99999985), near.word(0.123456789)) == (
        *("interval(0.9,0.9999999)", "0.99999985"),
        "0.123456789",
    )
    assert near.word(0.912345678) == "0.912346"


def test_every_value_of_a_list_and_both_ends_of_an_interval_are_checked() -> None:
    found = checked_words(SPACE)
    assert found[0] == ["optimizer.lr=0.0001", "model.num_layers=2", "optimizer=adamw"]
    assert [[word for word in words if word not in found[0]] for words in found[1:]] == [
        ["optimizer.lr=0.01"],
        ["model.num_layers=8"],
        ["optimizer=muon"],
    ]


def test_a_grid_takes_lists_and_steps_alone() -> None:
    listed = {key: SPACE[key] for key in ("model.num_layers", "optimizer")}
    assert grid_of(listed)["model.num_layers"] == [2, 4, 6, 8]
    assert num_of_grid(listed) == 8
    with pytest.raises(ConfigurationError, match=r"optimizer\.lr=tag\(log,interval\(0\.0001,0\.01\)\) has no steps"):
        require_space(SPACE, sampler="grid", words=[])


@pytest.mark.parametrize(
    ("low", "high", "is_log", "words"),
    [
        (1.0, float("inf"), False, "lr=interval(1,inf) has no bound"),
        (2.0, 1.0, False, r"is empty; nearest valid: lr=interval(1,2)"),
        (0.0, 1.0, True, "begins at 0, without a logarithm"),
    ],
)
def test_an_impossible_interval_is_refused(low: float, high: float, is_log: bool, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        interval("lr", low, high, is_log=is_log)
    assert words in str(refused.value)


def test_a_search_over_nothing_and_cmaes_over_one_number_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a search needs a key with values"):
        require_space({}, sampler="tpe", words=["seed=1"])
    with pytest.raises(ConfigurationError, match="draws two numbers or more"):
        require_space({"a": SPACE["optimizer.lr"], "b": SPACE["optimizer"]}, sampler="cmaes", words=[])
