from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lmtrain.errors import EXIT_NO, ConfigurationError
from lmtrain.run.sweeps import search as search_module
from lmtrain.run.sweeps.allowance import Allowance
from lmtrain.run.sweeps.book import TrialBook
from lmtrain.run.sweeps.search import Search
from lmtrain.run.sweeps.trial_clock import TrialTime
from lmtrain.search.space import Interval
from tests.run.sweeps.written_search import WritingRunner, flat, recorded, searching


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "POLL_SECONDS", 0.0)
    monkeypatch.setattr("lmtrain.run.sweeps.search_limits.LOOK_SECONDS", 0.0)


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
    assert "sweep.max_usd=0.01 is spent (40s, $0.011); trials under way stop" in capsys.readouterr().out
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
