"""Grids whose runs are written instead of trained: their record, ends and restarts."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_TERMINATED, ConfigurationError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.grid import grid_of
from lmtrain.run.sweeps.sweep import Sweep
from lmtrain.search.search_settings import SearchSettings
from lmtrain.tracking.run_folder import ask_to_stop
from tests.configs import config_with, default_config
from tests.run.sweeps.written_search import WritingRunner, flat, recorded


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.sweeps.sweep.POLL_SECONDS", 0.0)


def gridding(
    root: Path, runner: WritingRunner, *seeds: int, parallel: int = 1, resume: str = "auto", beside: bool = False
) -> Sweep:
    """Return a grid of seeds in the folder s, its runs in that folder or beside it."""
    named = replace(default_config().run, name=None if beside else "s")
    jobs = [
        Job(config=config_with(run=named, seed=seed, resume=resume), overrides=["logger=none", f"seed={seed}"],
            name=f"run-{seed}" if beside else f"s/run-{seed}", root=str(root), sweep="s")
        for seed in seeds
    ]  # fmt: skip
    return grid_of(jobs, SearchSettings(parallel=parallel), runner)


def scores(ends: dict[str, BaseException] | None = None) -> Callable[[dict[str, str]], list[float] | BaseException]:
    return lambda values: (ends or {}).get(values["seed"]) or [float(values["seed"])] * 4


def states(root: Path) -> list[tuple[str, str, float | None]]:
    return [(trial.runs[0].folder, trial.state, trial.score) for trial in recorded(root).trials]


@pytest.mark.parametrize("beside", [False, True])
def test_a_grid_records_its_trials_and_returns_the_worst_exit_code(
    tmp_path: Path, beside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = WritingRunner(scores({"2": RuntimeError("a bug")}))
    assert gridding(tmp_path, runner, 1, 2, 3, parallel=2, beside=beside).run() == 3
    place = "../" if beside else ""
    assert states(tmp_path) == [
        (f"{place}run-1", "finished", 1.0), (f"{place}run-2", "failed", None), (f"{place}run-3", "finished", 3.0),
    ]  # fmt: skip
    sweep = recorded(tmp_path)
    assert [trial.values for trial in sweep.trials] == [{"seed": "1"}, {"seed": "2"}, {"seed": "3"}]
    assert (sweep.kind, sweep.best, sweep.state) == ("grid", 0, "FINISHED")
    assert [slot for _, slot in runner.started] == [0, 1, 1]
    assert "trial 1: failed: a bug" in capsys.readouterr().out


def test_a_grid_started_again_trains_what_has_not_finished_and_keeps_earlier_trials(tmp_path: Path) -> None:
    gridding(tmp_path, WritingRunner(scores({"2": RuntimeError("a bug")})), 1, 2).run()
    again = WritingRunner(scores())
    assert gridding(tmp_path, again, 2, 3).run() == 0
    assert [name for name, _ in again.started] == ["run-2", "run-3"]
    finished = [(f"run-{seed}", "finished", float(seed)) for seed in (1, 2, 3)]
    assert states(tmp_path) == finished
    assert gridding(tmp_path, again, 1, 2, 3).run() == 0
    assert len(again.started) == 2, "nothing is left to do"
    shutil.rmtree(tmp_path / "s/run-1")
    assert gridding(tmp_path, again, 1, 2).run() == 0
    assert again.started[2:] == [("run-1", 0)], "a run that is gone"
    gridding(tmp_path, again, 3, resume="never").run()
    assert again.started[3:] == [("run-3", 0)]
    assert states(tmp_path) == finished


def test_trials_of_other_texts_have_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        (tmp_path / f"s/run-{seed}").mkdir(parents=True)
        (tmp_path / f"s/run-{seed}/dataset.json").write_text(json.dumps({"name": f"text {seed}"}))
    sweep = gridding(tmp_path, WritingRunner(scores()), 1, 2)
    sweep.run()
    sweep.lines.last(sweep.sweep)
    assert recorded(tmp_path).best is None
    assert "The held-out texts differ" in capsys.readouterr().out


@pytest.mark.parametrize("is_wish", [False, True])
def test_a_signal_or_a_wish_stops_what_runs_and_the_same_command_continues(tmp_path: Path, is_wish: bool) -> None:
    def stopping(values: dict[str, str]) -> list[float]:
        if values["seed"] == "2":
            ask_to_stop(tmp_path / "s") if is_wish else os.kill(os.getpid(), signal.SIGTERM)
        return [1.0] * 4

    before = signal.getsignal(signal.SIGTERM)
    assert gridding(tmp_path, WritingRunner(stopping), 1, 2, 3).run() == EXIT_TERMINATED
    assert [state for _, state, _ in states(tmp_path)] == ["finished", "waiting", "waiting"]
    assert (recorded(tmp_path).state, recorded(tmp_path).reason) == ("KILLED", "it was stopped")
    assert signal.getsignal(signal.SIGTERM) == before
    again = WritingRunner(flat(lambda values: 1.0))
    assert gridding(tmp_path, again, 1, 2, 3).run() == 0
    assert [name for name, _ in again.started] == ["run-2", "run-3"]


def test_the_name_of_a_search_is_refused(tmp_path: Path) -> None:
    gridding(tmp_path, WritingRunner(scores()), 1).run()
    replace(recorded(tmp_path), kind="search").save(tmp_path / "s")
    with pytest.raises(ConfigurationError, match="is a search"):
        gridding(tmp_path, WritingRunner(scores()), 1)
