"""The space and settings of a search, Optuna's study."""

from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import ConfigurationError
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import (
    Interval,
    ListedValues,
    interval,
    require_space,
)
from lmtrain.search.study import JOURNAL, open_study

LR = Interval(low=1e-4, high=1e-2, is_log=True)
OPTIMIZER = ListedValues(values=("adamw", "muon"))
SPACE = {"optimizer.lr": LR, "model.num_layers": Interval(low=2, high=8, step=2), "optimizer": OPTIMIZER}
NUMBERS = {"lr": LR, "width": Interval(low=8, high=64, step=8)}


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"trials": 0}, r"sweep\.trials.*at least 1, got 0"),
        ({"max_hours": 0.0}, r"sweep\.max_hours.*positive"),
        ({"metric": "validation/bit_per_byte"}, r"sweep\.metric.*Did you mean 'validation/bits_per_byte'"),
        ({"slurm": {"slurm_partition": "gpu"}}, r"sweep\.launcher=slurm"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        SearchSettings(**settings)


def test_drawn_values_are_overrides_within_the_bounds() -> None:
    assert (LR.word(0.00123456789), OPTIMIZER.word("muon")) == ("0.00123457", "muon")
    near = Interval(low=0.9, high=0.9999999)
    assert [near.word(value) for value in (0.99999985, 0.912345678)] == ["0.99999985", "0.912346"]


@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (lambda: interval("lr", 1.0, float("inf")), r"lr=interval\(1,inf\).*finite"),
        (lambda: interval("lr", 2.0, 1.0), r"write lr=interval\(1,2\)"),
        (lambda: interval("lr", 0.0, 1.0, is_log=True), r"lr=.*above 0"),
        (lambda: require_space(SPACE, sampler="grid", words=[]), r"optimizer\.lr=.*no steps.*tpe"),
        (lambda: require_space({}, sampler="tpe", words=["seed=1"]), r"seed=1.*needs a key with values"),
        (lambda: require_space({"a": LR, "b": OPTIMIZER}, sampler="cmaes", words=[]), r"cmaes.*two intervals.*tpe"),
    ],
)
def test_an_impossible_space_is_refused(build: Any, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match=pattern):
        build()


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_a_study_finds_lower_values_and_draws_the_same_ones_in_other_processes(tmp_path: Path, sampler: str) -> None:
    settings = SearchSettings(sampler=sampler)  # pyright: ignore[reportArgumentType]
    drawn: dict[str, list[float]] = {}
    for name, reopened_at in (("whole", ()), ("killed", (3, 10, 11))):
        (tmp_path / name).mkdir()
        study = open_study(tmp_path / name, NUMBERS, settings)
        for number in range(20):
            if number in reopened_at:
                study = open_study(tmp_path / name, NUMBERS, settings)
            begun, values = study.draw()
            if number in reopened_at:  # killed once it is drawn: the next process finishes it
                study = open_study(tmp_path / name, NUMBERS, settings)
                assert study.unfinished() == [(begun, values)]
            study.end(begun, score=abs(float(values["lr"]) - 3e-3))
        drawn[name] = [trial.params["lr"] for trial in study.study.trials]
        assert all(trial.params["width"] % 8 == 0 for trial in study.study.trials)
    assert drawn["killed"] == drawn["whole"]
    assert len(set(drawn["whole"])) == 20
    assert all(1e-4 <= lr <= 1e-2 for lr in drawn["whole"])
    if sampler == "tpe":  # it learns: its late draws are nearer than its first
        errors = [abs(lr - 3e-3) for lr in drawn["whole"]]
        assert sum(errors[10:]) < sum(errors[:10])


def test_a_trial_of_a_killed_process_is_open_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    settings = SearchSettings()
    study = open_study(tmp_path, NUMBERS, settings)
    study.end(study.draw()[0], score=1.0)
    begun = study.draw()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    resumed = open_study(tmp_path, NUMBERS, settings)
    assert resumed.unfinished() == [begun]
    resumed.end(begun[0], score=0.5)
    assert [trial.value for trial in open_study(tmp_path, NUMBERS, settings).study.trials] == [1.0, 0.5]


def test_a_grid_is_drawn_in_order_once(tmp_path: Path) -> None:
    space = {"seed": ListedValues(values=("1", "2")), "width": Interval(low=8, high=16, step=8)}
    settings = SearchSettings(sampler="grid")
    drawn = [open_study(tmp_path, space, settings).draw() for _ in range(4)]
    assert drawn == [
        (0, {"seed": "1", "width": "8"}), (1, {"seed": "1", "width": "16"}),
        (2, {"seed": "2", "width": "8"}), (3, {"seed": "2", "width": "16"}),
    ]  # fmt: skip
