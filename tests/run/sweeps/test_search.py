"""Searches whose runs are written instead of trained: their order, ends, limits and restarts."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import EXIT_NO, EXIT_TERMINATED, ConfigurationError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps import search as search_module
from lmtrain.run.sweeps.book import SearchConsole, TrialBook
from lmtrain.run.sweeps.limits import Allowance
from lmtrain.run.sweeps.outcome import KILLED, TrialTime
from lmtrain.run.sweeps.search import Search
from lmtrain.search.search_settings import SearchSettings
from lmtrain.search.space import Interval, ListedValues
from lmtrain.search.study import draw, open_study
from lmtrain.tracking.run_folder import ask_to_stop
from lmtrain.tracking.sweep_file import SweepFile, read_sweep
from tests.run.sweeps.written_search import (
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
    monkeypatch.setattr(search_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr("lmtrain.run.sweeps.limits.LOOK_SECONDS", 0.0)


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
    told = [trial.state.name for trial in open_study(tmp_path / "s", SearchSettings()).trials]
    assert told == ["PRUNED", "PRUNED", "FAIL", "FAIL", "COMPLETE", "COMPLETE"]  # the first two: a bad place


def test_a_search_without_a_finished_trial_says_no(tmp_path: Path) -> None:
    runner = WritingRunner(lambda values: RuntimeError("a bug"))
    assert searching(tmp_path, runner, num_trials=2).run() == EXIT_NO


def test_the_mean_of_the_seeds_decides(tmp_path: Path) -> None:
    noise = {"0": -0.5, "1": 0.1, "2": 0.7}
    runner = WritingRunner(flat(lambda values: 1.0 if values["x"] == "2" else 0.95 + noise[values["seed"]]))
    searching(tmp_path, runner, seeds=3, num_trials=2).run()
    one, other = recorded(tmp_path).trials
    assert [run.score for run in one.runs] == pytest.approx([0.45, 1.05, 1.65])  # its first seed is the best run
    assert (one.score, one.deviation) == (pytest.approx(1.05), pytest.approx(0.6))
    assert (recorded(tmp_path).best, other.deviation) == (1, 0.0)


def test_trials_scored_on_different_texts_have_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def score(values: dict[str, str]) -> list[float]:
        folder = tmp_path / f"s/trial-000{int(values['x']) - 1}"
        folder.mkdir()
        splits = {"validation": {"text_bytes": 1000 if values["x"] == "1" else 2000}}
        (folder / "dataset.json").write_text(json.dumps({"name": "notes", "splits": splits}))
        return [float(values["x"])] * 4

    search = searching(tmp_path, WritingRunner(score), num_trials=3)
    assert search.run() == 0
    sweep = recorded(tmp_path)
    assert sweep.best is None
    assert "notes (1,000 held-out bytes), notes (2,000 held-out bytes)" in str(sweep.unranked)
    search.book.console.last_lines(sweep)
    told = capsys.readouterr().out
    assert told.count("The held-out texts differ") == 2, "after the second trial, and at the end"
    assert "best 1.0000 of trial 0\n" in told, "while there is one score alone"
    assert "train the best" not in told
    assert "lower is better" not in told


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


def test_halving_goes_on_with_the_better_part_from_where_it_paused_also_after_a_kill(tmp_path: Path) -> None:
    def score(values: dict[str, str]) -> list[float] | BaseException:
        if killed and len(killed[0].started) == 4:
            return Killed()
        return [float(values["x"]) - step for step in range(4)]

    killed: list[WritingRunner] = []
    first = WritingRunner(score)
    killed.append(first)
    with pytest.raises(Killed):
        searching(tmp_path, first, rounds=(1, 2, 4), pruner="halving").run()
    killed.clear()
    second = WritingRunner(score)
    assert searching(tmp_path, second, rounds=(1, 2, 4), pruner="halving").run() == 0
    names = [name for name, _ in (*first.started[:4], *second.started)]
    assert names == [*(f"trial-000{n}" for n in range(4)), "trial-0000", "trial-0001", "trial-0000"]
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == ["finished", "pruned", "pruned", "pruned"]
    points = (tmp_path / "s" / "trial-0000" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in points] == [2, 4, 6, 8]  # none trained twice


def test_the_median_stops_a_run_at_one_of_its_validations(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, pruner="median", warmup_trials=1).run()
    trials = recorded(tmp_path).trials
    assert [trial.state for trial in trials] == ["finished", "pruned", "pruned", "pruned"]
    points = (tmp_path / "s" / "trial-0003" / "metrics.jsonl").read_text().splitlines()
    assert len(points) < 4


def test_runs_side_by_side_have_slots_of_their_own(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, parallel=2).run()
    assert {slot for _, slot in runner.started} == {0, 1}
    assert recorded(tmp_path).best == 0


def test_values_drawn_again_are_not_trained_again(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    searching(tmp_path, runner, sampler="random", num_trials=12).run()
    assert len(runner.started) == len({trial.values["x"] for trial in recorded(tmp_path).trials}) <= 4


def test_a_metric_of_no_run_is_refused_and_its_run_is_kept_for_another_metric(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: 1.0))
    search = searching(tmp_path, runner)
    search.book.sweep.metric = "validation/mine/loss"
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
    assert recorded(tmp_path).reason == "all 4 trials have ended"


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
    assert "trial 0: stopped: the same command continues it\n" in capsys.readouterr().out
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
    assert (sweep.state, sweep.reason, sweep.best) == ("FINISHED", "all 2 trials have ended", 0)
    assert steps_of(tmp_path, "trial-0000") == [2, 4, 6, 8]
    assert [trial.value for trial in open_study(tmp_path / "s", SearchSettings()).trials[:2]] == [1.0, 2.0]


def test_a_round_of_halving_waits_for_its_trial_that_was_stopped(tmp_path: Path) -> None:
    runner = StoppedOnce(flat(lambda values: float(values["x"])))
    assert searching(tmp_path, runner, rounds=(2, 4), pruner="halving").run() == EXIT_NO
    sweep = recorded(tmp_path)
    assert [trial.state for trial in sweep.trials] == ["stopped", "paused", "paused", "paused"]
    assert str(sweep.reason).endswith(" 1 stopped; the same command continues it")
    assert searching(tmp_path, runner, rounds=(2, 4), pruner="halving").run() == 0
    assert [trial.state for trial in recorded(tmp_path).trials] == ["finished", "finished", "pruned", "pruned"]
    assert [name for name, _ in runner.started[4:]] == ["trial-0000", "trial-0000", "trial-0001"]
    assert steps_of(tmp_path, "trial-0000") == [2, 4, 6, 8]


@pytest.mark.parametrize("is_failing", [False, True])
def test_the_other_seeds_of_a_stopped_trial_count_too(tmp_path: Path, is_failing: bool) -> None:
    def score(values: dict[str, str]) -> list[float] | BaseException:
        return RuntimeError("a bug") if is_failing and values["seed"] == "1" else [float(values["seed"])] * 4

    runner = StoppedOnce(score)
    searching(tmp_path, runner, seeds=2, num_trials=1, parallel=2).run()
    assert recorded(tmp_path).trials[0].state == ("failed" if is_failing else "stopped")
    searching(tmp_path, runner, seeds=2, num_trials=1, parallel=2).run()
    (trial,) = recorded(tmp_path).trials
    assert (trial.state, trial.score) == (("failed", None) if is_failing else ("finished", 0.5))
    assert len(runner.started) == (2 if is_failing else 3)


def test_a_signal_while_a_trial_is_composed_stops_it_too(tmp_path: Path) -> None:
    search = searching(tmp_path, WritingRunner(flat(lambda values: 1.0)))
    compose = search.make_job

    def interrupted(words: Sequence[str]) -> Job:
        if "x=2" in words:
            os.kill(os.getpid(), signal.SIGTERM)
        return compose(words)

    search.make_job = interrupted
    assert search.run() == EXIT_TERMINATED
    assert [trial.state for trial in recorded(tmp_path).trials] == ["finished", "waiting"]


def _under_way(root: Path) -> None:
    assert (recorded(root).state, recorded(root).reason) == ("RUNNING", None)


def limited(search: Search, clocks: list[TrialTime], monkeypatch: pytest.MonkeyPatch, **limits: float) -> Search:
    """Give a search a limit, and its runs' clocks these times one after another."""
    settings = replace(search.settings, **limits)
    search.limits.allowance = Allowance(settings=settings, planned_seconds=None, usd_per_hour=1.0)
    monkeypatch.setattr(search_module, "clock_of", lambda folder: Clock(clocks))
    return search


@dataclass
class Clock:
    times: list[TrialTime]

    def look(self) -> TrialTime:
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def test_a_run_is_stopped_at_the_limit_and_goes_on_under_a_higher_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = WritingRunner(flat(lambda values: 1.0))
    clocks = [TrialTime(spent_seconds=10.0), TrialTime(spent_seconds=40.0)]
    assert limited(searching(tmp_path, runner), clocks, monkeypatch, max_usd=0.01).run() == EXIT_NO  # 36 s
    assert "sweep.max_usd=0.01 is spent (40s, $0.011); running trials stop" in capsys.readouterr().out
    sweep = recorded(tmp_path)
    assert [(trial.state, trial.reason) for trial in sweep.trials] == [("waiting", sweep.reason)]
    assert sweep.reason == "sweep.max_usd=0.01 is spent (40s, $0.011)"
    spent = [TrialTime(spent_seconds=10.0)]
    monkeypatch.setattr(search_module, "seconds_of", lambda folder: 40.0)
    assert limited(searching(tmp_path, runner), spent, monkeypatch, max_usd=0.01).run() == EXIT_NO
    assert len(runner.started) == 1  # nothing is left to spend
    monkeypatch.setattr(search_module, "seconds_of", lambda folder: 0.0)
    assert limited(searching(tmp_path, runner), spent, monkeypatch, max_usd=1.0).run() == 0
    assert (len(recorded(tmp_path).trials), len(runner.started)) == (4, 5)


def test_the_first_steps_plan_all_trials_and_a_limit_below_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = WritingRunner(flat(lambda values: 1.0))
    first = TrialTime(spent_seconds=5.0, whole_seconds=60.0, steps=4)
    small = limited(searching(tmp_path, runner), [first], monkeypatch, max_usd=0.01)
    with pytest.raises(
        ConfigurationError, match=r"max_usd=0\.01 is less than one trial takes by 4 steps of trial 0, 1min"
    ):
        small.run()
    assert [trial.state for trial in recorded(tmp_path).trials] == ["waiting"]
    assert limited(searching(tmp_path, runner), [first], monkeypatch, max_usd=0.05).run() == 0
    said = capsys.readouterr().out
    assert "4min00s, $0.067; sweep.max_usd=0.05 has room for about 3 of them" in said


def test_hours_end_the_drawing(tmp_path: Path) -> None:
    runner = WritingRunner(flat(lambda values: float(values["x"])))
    search = searching(tmp_path, runner, space={"x": Interval(low=0.0, high=1.0)}, sampler="random", num_trials=9)
    settings = replace(search.settings, max_hours=0.02)  # 72 s: room for one planned minute
    search.limits.allowance = Allowance(settings=settings, planned_seconds=60.0, usd_per_hour=None)
    search.book.close_run = _with_seconds(search.book, 60.0)
    search.run()
    assert len(runner.started) == 1
    assert recorded(tmp_path).reason == "sweep.max_hours=0.02 has no room for another trial"


def _with_seconds(book: TrialBook, seconds: float) -> Any:
    close = book.close_run
    return lambda trial, run, outcome: close(trial, run, replace(outcome, seconds=seconds))


BOOK_SPACE = {"optimizer.lr": Interval(low=0.0, high=1.0)}


def book_of(folder: Path) -> TrialBook:
    sweep = read_sweep(folder) or SweepFile(name="s", kind="search", metric="m", fingerprint="f", command="c")
    return TrialBook(
        sweep=sweep,
        study=open_study(folder, SearchSettings(sampler="random")),
        space=BOOK_SPACE,
        settings=SearchSettings(sampler="random"),
        seeds=[7],
        rounds=[1],
        folder=folder,
        console=SearchConsole("s", "train", []),
    )


def test_the_study_catches_up_with_a_file_written_before_a_kill(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    record = book.draw()
    record.state, record.score = "finished", 1.5
    book.save()  # killed here: the study was not told
    resumed = book_of(tmp_path)
    assert resumed.adopt() == []
    assert resumed.study.trials[0].value == 1.5


def test_a_trial_drawn_and_not_yet_written_is_taken_up_with_its_values(tmp_path: Path) -> None:
    book = book_of(tmp_path)
    drawn = draw(book.study, BOOK_SPACE, book.settings)  # killed here: the file does not have it
    (found,) = book_of(tmp_path).adopt()
    assert (found.number, found.state) == (0, "waiting")
    assert found.values == {"optimizer.lr": f"{drawn.params['optimizer.lr']:.6g}"}
    assert [(run.folder, run.seed) for run in found.runs] == [("trial-0000", 7)]
