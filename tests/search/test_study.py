from pathlib import Path

import pytest

from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Interval, ListedValues
from lmtrain.search.study import JOURNAL, cut_unfinished_line, draw, enqueue_grid, open_study, open_trials, tell_score

SPACE = {"lr": Interval(low=1e-4, high=1e-2, is_log=True), "width": Interval(low=8, high=64, step=8)}


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "random"])
def test_a_study_finds_lower_values_and_goes_on_in_another_process(tmp_path: Path, sampler: str) -> None:
    settings = SearchSettings(sampler=sampler)
    study = open_study(tmp_path, settings)
    for _ in range(2):  # the second time it is read back from its file
        study = open_study(tmp_path, settings)
        for _ in range(10):
            trial = draw(study, SPACE)
            tell_score(study, trial.number, abs(trial.params["lr"] - 3e-3))
    drawn = [trial.params["lr"] for trial in study.trials]
    assert len(set(drawn)) == 20
    assert all(1e-4 <= lr <= 1e-2 for lr in drawn)
    assert all(trial.params["width"] % 8 == 0 for trial in study.trials)
    if sampler == "tpe":  # it learns: its late draws lie nearer than its first
        errors = [abs(lr - 3e-3) for lr in drawn]
        assert sum(errors[10:]) < sum(errors[:10])


def test_a_trial_of_a_killed_process_is_open_and_a_torn_line_is_cut(tmp_path: Path) -> None:
    study = open_study(tmp_path, SearchSettings())
    tell_score(study, draw(study, SPACE).number, 1.0)
    begun = draw(study, SPACE)
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    resumed = open_study(tmp_path, SearchSettings())
    (found,) = open_trials(resumed)
    assert (found.number, found.params) == (begun.number, begun.params)
    tell_score(resumed, found.number, 0.5)
    assert [trial.value for trial in open_study(tmp_path, SearchSettings()).trials] == [1.0, 0.5]
    cut_unfinished_line(tmp_path / "none")


def test_a_grid_is_drawn_in_order_once(tmp_path: Path) -> None:
    space = {"seed": ListedValues(values=("1", "2")), "width": Interval(low=8, high=16, step=8)}
    for num in (1, 3):
        study = open_study(tmp_path, SearchSettings(sampler="grid"))
        enqueue_grid(study, space)
        for _ in range(num):
            draw(study, space)
    assert [tuple(trial.params.values()) for trial in study.trials] == [("1", 8), ("1", 16), ("2", 8), ("2", 16)]
