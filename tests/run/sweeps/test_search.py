"""Searches whose runs are written instead of trained: their order, ends, limits and restarts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_NO, EXIT_TERMINATED, ConfigurationError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.outcome import KILLED
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import ListedValues
from lmtrain.search.study import SearchStudy, open_study
from lmtrain.tracking.run_folder import ask_to_stop
from tests.run.sweeps.written_search import (
    GRID,
    METRIC,
    Killed,
    WritingRunner,
    Written,
    flat,
    recorded,
    searching,
)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.sweeps.sweep.POLL_SECONDS", 0.0)


def test_bad_trials_are_recorded_and_the_best_of_the_others_is_found(tmp_path: Path) -> None:
    from lmtrain.errors import Diverged, OutOfMemory

    ends = {"1": Diverged("step 3 has loss nan"), "2": OutOfMemory("out of memory"), "3": RuntimeError("a bug")}
    space = {"x": ListedValues(values=("1", "2", "3", "refused", "5", "4"))}
    runner = WritingRunner(lambda values: ends.get(values["x"]) or [float(values["x"])] * 4)
    assert searching(tmp_path, runner, space=space, num_trials=6).run() == 0
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == [
        "diverged", "out_of_memory", "failed", "failed", "finished", "finished",
    ]  # fmt: skip
    assert (sweep.best, sweep.state) == (5, "FINISHED")
    assert sweep.trials[0].reason == "step 3 has loss nan"
    assert sweep.trials[3].reason == "x=refused is no number."
    told = [trial.state.name for trial in open_study(tmp_path / "s", GRID, SearchSettings()).study.trials]
    assert told == ["PRUNED", "PRUNED", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]  # the first two: a bad place


def test_the_mean_of_the_seeds_decides(tmp_path: Path) -> None:
    noise = {"0": -0.5, "1": 0.1, "2": 0.7}
    runner = WritingRunner(flat(lambda values: 1.0 if values["x"] == "2" else 0.95 + noise[values["seed"]]))
    searching(tmp_path, runner, seeds=3, num_trials=2).run()
    one, other = recorded(tmp_path).trials
    assert [run.score for run in one.runs] == pytest.approx([0.45, 1.05, 1.65])  # its first seed is the best run
    assert (one.score, one.deviation) == (pytest.approx(1.05), pytest.approx(0.6))
    assert (recorded(tmp_path).best, other.deviation) == (1, 0.0)


@pytest.mark.faults
def test_a_killed_search_goes_on_without_a_trial_run_twice(tmp_path: Path) -> None:
    killed = WritingRunner(lambda values: Killed() if values["x"] == "3" else [float(values["x"])] * 4)
    with pytest.raises(Killed):
        searching(tmp_path, killed).run()
    assert [name for name, _ in killed.started] == ["trial-0000", "trial-0001", "trial-0002"]
    assert (recorded(tmp_path).state, recorded(tmp_path).trials[-1].state) == ("KILLED", "waiting")
    resumed = WritingRunner(flat(lambda values: _under_way(tmp_path) or float(values["x"])))
    assert searching(tmp_path, resumed).run() == 0
    assert [name for name, _ in resumed.started] == ["trial-0002", "trial-0003"]
    assert [trial.values["x"] for trial in recorded(tmp_path).trials] == ["1", "2", "3", "4"]
    assert searching(tmp_path, resumed).run() == 0  # nothing is left to do
    assert len(resumed.started) == 2


def test_halving_ends_trials_that_are_not_among_the_better_part_at_a_validation(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    assert searching(tmp_path, runner, pruner="halving").run() == 0
    assert [trial.state for trial in recorded(tmp_path).trials] == ["finished", "pruned", "pruned", "pruned"]
    assert len(steps_of(tmp_path, "trial-0003")) < 4


def test_a_metric_of_no_run_is_refused_and_its_run_is_kept_for_another_metric(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: 1.0))
    search = searching(tmp_path, runner)
    search.sweep.metric = "validation/mine/loss"
    with pytest.raises(ConfigurationError, match=r"mine/loss is in no point of trial-0000"):
        search.run()
    sweep = recorded(tmp_path)
    assert (sweep.state, [trial.state for trial in sweep.trials], len(runner.started)) == ("FAILED", ["waiting"], 1)
    replace(sweep, metric=METRIC).save(tmp_path / "s")
    assert searching(tmp_path, runner).run() == 0
    assert [name for name, _ in runner.started][:2] == ["trial-0000", "trial-0000"]
    points = (tmp_path / "s" / "trial-0000" / "metrics.jsonl").read_text().splitlines()
    assert len(points) == 4  # none trained twice


@pytest.mark.parametrize("code", [EXIT_TERMINATED, KILLED])  # killed where its step took longer than the grace
def test_a_wish_in_its_folder_stops_the_search_and_its_runs(tmp_path: Path, code: int) -> None:
    def score(values: dict[str, str]) -> list[float]:
        if values["x"] == "2" and len(runner.started) == 1:
            ask_to_stop(tmp_path / "s")
        return [1.0] * 4

    runner = WritingRunner(score, stopped=code)
    assert searching(tmp_path, runner).run() == EXIT_TERMINATED
    sweep = recorded(tmp_path)
    assert (sweep.state, sweep.reason) == ("KILLED", "it was stopped")
    assert [trial.state for trial in sweep.trials] == ["finished", "waiting"]
    assert searching(tmp_path, runner).run() == 0
    assert [trial.state for trial in recorded(tmp_path).trials] == ["finished"] * 4
    assert recorded(tmp_path).reason == "4 of 4 trials have ended"


class StoppedOnce(WritingRunner):
    """Runs of which the first is stopped by itself after two steps."""

    def start(self, job: Job, job_path: Path, *, slot: int) -> Written:
        written = super().start(job, job_path, slot=slot)
        return replace(written, end=2) if len(self.started) == 1 else written


def steps_of(root: Path, name: str) -> list[int]:
    return [json.loads(line)["step"] for line in (root / "s" / name / "metrics.jsonl").read_text().splitlines()]


def test_a_trial_stopped_by_itself_goes_on_with_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = StoppedOnce(flat(lambda values: float(values["x"])))
    assert searching(tmp_path, runner, num_trials=2).run() == 0
    assert "trial 0: stopped: the same command continues it" in capsys.readouterr().out
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == ["stopped", "finished"]
    assert (sweep.state, sweep.reason) == (
        "KILLED",
        "1 of 2 trials have ended, 1 stopped; the same command continues it",
    )
    assert searching(tmp_path, runner, num_trials=2).run() == 0
    assert [name for name, _ in runner.started] == ["trial-0000", "trial-0001", "trial-0000"]
    sweep = recorded(tmp_path)
    assert [(trial.state, trial.score, trial.reason) for trial in sweep.trials] == [
        ("finished", 1.0, None),
        ("finished", 2.0, None),
    ]
    assert (sweep.state, sweep.reason, sweep.best) == ("FINISHED", "2 of 2 trials have ended", 0)
    assert steps_of(tmp_path, "trial-0000") == [2, 4, 6, 8]
    assert [trial.value for trial in open_study(tmp_path / "s", GRID, SearchSettings()).study.trials[:2]] == [1.0, 2.0]


def _under_way(root: Path) -> None:
    assert (recorded(root).state, recorded(root).reason) == ("RUNNING", None)


def test_a_run_is_stopped_at_the_limit_and_goes_on_under_a_higher_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = WritingRunner(flat(lambda values: 1.0))
    assert searching(tmp_path, runner, max_hours=1e-9).run() == EXIT_NO
    assert "sweep.max_hours=1e-09 is spent" in capsys.readouterr().out
    sweep = recorded(tmp_path)
    assert [(trial.state, trial.reason) for trial in sweep.trials] == [("waiting", sweep.reason)]
    assert sweep.reason == "sweep.max_hours=1e-09 is spent"
    assert searching(tmp_path, runner, max_hours=1.0).run() == 0
    assert (len(recorded(tmp_path).trials), len(runner.started)) == (4, 5)


def test_the_study_catches_up_with_a_file_written_before_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    runner = WritingRunner(flat(lambda values: float(values["x"])))
    with monkeypatch.context() as patch:
        patch.setattr(SearchStudy, "end", killed)  # the file has the end, the study does not
        with pytest.raises(Killed):
            searching(tmp_path, runner).run()
    assert searching(tmp_path, runner).run() == 0
    assert len(runner.started) == 4
    assert [trial.value for trial in open_study(tmp_path / "s", GRID, SearchSettings()).study.trials] == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]
