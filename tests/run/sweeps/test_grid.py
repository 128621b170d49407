"""Grids: trials one after another or side by side, recorded in sweep.json."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigurationError
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.grid import (
    GridRecord,
    one_after_another,
    run_grid,
    side_by_side,
)
from lmtrain.run.sweeps.pool import Pool
from lmtrain.tracking.following import NoTracking
from lmtrain.tracking.run_folder import ask_to_stop
from lmtrain.tracking.status import Status, write_status
from lmtrain.tracking.sweep_file import read_sweep
from lmtrain.training.stopping import StoppedEarly, stopping_at_once
from tests.configs import config_with, default_config


def trials(*names: str) -> list[Job]:
    return [
        Job(config=config_with(), overrides=[f"seed={name}"], name=name, root="runs", sweep="sweep-1") for name in names
    ]


def sweep(jobs: list[Job], start: Callable[[Job], int]) -> int:
    return run_grid(jobs, one_after_another(jobs, start))


@pytest.mark.parametrize("code", [EXIT_INTERRUPTED, EXIT_TERMINATED])
def test_a_stop_from_outside_ends_the_sweep_and_not_its_trial_alone(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(NoTracking, "finish_sweep", lambda *args, **facts: ended.append(facts["status"]))
    codes = {"a": 4, "b": code, "c": 0}
    assert sweep(trials("a", "b", "c"), lambda trial: codes[trial.name]) == code
    assert ended == ["KILLED"]
    lines = capsys.readouterr().out.splitlines()
    assert "3 trials: 1 failed, 1 stopped, 1 waiting" in lines[0]


def test_a_signal_too_late_for_its_trial_ends_the_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    def start(trial: Job) -> int:
        with stopping_at_once(), suppress(StoppedEarly):  # as a run whose last step is saved
            signal.raise_signal(signal.SIGTERM)
        return 0

    assert sweep(trials("a", "b"), start) == EXIT_TERMINATED
    assert "trial 0    finished" in capsys.readouterr().out
    assert sweep(trials("a"), start) == 0, "nothing was left to stop"


def test_a_wish_in_the_sweep_s_folder_ends_it_before_its_next_trial(tmp_path: Path) -> None:
    jobs, started = [replace(job, root=str(tmp_path)) for job in trials("a", "b")], []

    def start(trial: Job) -> int:
        started.append(trial.name)
        ask_to_stop(tmp_path / "sweep-1")
        return 0

    with pytest.raises(KeyboardInterrupt):
        sweep(jobs, start)
    assert started == ["a"]


def test_a_grid_leaves_its_trials_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=llama_micro"]
    trials = [
        replace(
            Job(
                config=config_with(seed=seed),
                overrides=[*words, f"seed={seed}"],
                name=f"run-{seed}",
                root=str(tmp_path),
            ),
            sweep="sweep-1",
        )
        for seed in (1, 2)
    ]
    (tmp_path / "run-1").mkdir()
    line = '{"time": 0, "step": 4, "tokens": 8, "metrics": {"validation/bits_per_byte": 1.5}}\n'
    (tmp_path / "run-1" / "metrics.jsonl").write_text(line)
    codes = {"run-1": 0, "run-2": 4}
    assert run_grid(trials, [(trial, codes[trial.name]) for trial in trials]) == 4
    sweep = read_sweep(tmp_path / "sweep-1")
    assert sweep is not None
    assert [(trial.values, trial.state, trial.score) for trial in sweep.trials] == [
        ({"seed": "1"}, "finished", 1.5),
        ({"seed": "2"}, "failed", None),
    ]
    assert [trial.runs[0].folder for trial in sweep.trials] == ["../run-1", "../run-2"]
    assert (sweep.best, sweep.state, sweep.reason) == (0, "FAILED", "2 of 2 trials have ended")
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "metrics.jsonl").write_text(line)
    for number in (1, 2):
        (tmp_path / f"run-{number}/dataset.json").write_text(json.dumps({"name": f"text {number}"}))
    run_grid(trials, [(trial, 0) for trial in trials])
    assert "The held-out texts differ" in capsys.readouterr().out
    unranked = read_sweep(tmp_path / "sweep-1")
    assert unranked is not None
    assert unranked.best is None


def test_a_named_grid_keeps_its_record_in_its_folder_and_a_second_one_adds_its_trials(tmp_path: Path) -> None:
    def grid(*seeds: int) -> list[Job]:
        named = replace(default_config().run, name="race")
        return [
            Job(config=config_with(run=named, seed=seed), overrides=[f"seed={seed}"], name=f"race/run-{seed}",
                root=str(tmp_path), sweep=f"sweep-{seeds}")
            for seed in seeds
        ]  # fmt: skip

    for seeds in ((1, 2), (2, 3)):
        run_grid(grid(*seeds), [(trial, 4) for trial in grid(*seeds)])
    sweep = read_sweep(tmp_path / "race")
    assert sweep is not None
    assert [(trial.number, trial.runs[0].folder) for trial in sweep.trials] == [
        (0, "run-2"),
        (1, "run-3"),
        (2, "run-1"),
    ]
    run_grid(grid(1, 2), [(grid(1)[0], 143)])
    stopped = read_sweep(tmp_path / "race")
    assert stopped is not None
    assert stopped.reason == "0 of 2 trials have ended, 1 stopped", "the same command goes on with it"
    replace(sweep, kind="search").save(tmp_path / "race")
    with pytest.raises(ConfigurationError, match="is a search"):
        run_grid(grid(4), [])


def test_a_grid_started_again_keeps_what_is_known_of_its_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def grid(resume: str = "auto") -> list[Job]:
        named = replace(default_config().run, name="race")
        return [
            Job(config=config_with(run=named, seed=seed, resume=resume), overrides=[f"seed={seed}"],
                name=f"race/run-{seed}", root=str(tmp_path), sweep="sweep-1")
            for seed in (1, 2, 3)
        ]  # fmt: skip

    def states() -> list[tuple[str, float | None]]:
        found = read_sweep(tmp_path / "race")
        assert found is not None
        return [(trial.state, trial.score) for trial in found.trials]

    for seed in (1, 2, 3):
        line = {"time": 0, "step": 4, "tokens": 8, "metrics": {"validation/bits_per_byte": 1.0 + seed}}
        (tmp_path / f"race/run-{seed}").mkdir(parents=True)
        (tmp_path / f"race/run-{seed}/metrics.jsonl").write_text(json.dumps(line) + "\n")
        write_status(tmp_path / f"race/run-{seed}", Status("FINISHED" if seed < 3 else "KILLED", 0))
    run_grid(grid(), zip(grid(), (0, 0, 143), strict=True))
    known = [("finished", 2.0), ("finished", 3.0), ("stopped", 4.0)]
    assert states() == known
    GridRecord(grid()).save()  # and killed
    assert states() == known
    capsys.readouterr()
    assert run_grid(grid(), [(grid()[0], 130)]) == 130, "stopped before it saw that nothing is left to do"
    sweep = read_sweep(tmp_path / "race")
    assert sweep is not None
    assert (states(), sweep.best) == (known, 0)
    assert (sweep.state, sweep.reason) == ("KILLED", "2 of 3 trials have ended, 1 stopped")
    assert "train the best: python train.py seed=1" in capsys.readouterr().out
    write_status(tmp_path / "race/run-2", Status("KILLED", 143))  # it trained on
    run_grid(grid(), zip(grid(), (0, 143), strict=False))
    assert states() == [known[0], ("stopped", 3.0), known[2]]
    shutil.rmtree(tmp_path / "race/run-1")
    GridRecord(grid()).save()
    assert states() == [("waiting", None), ("stopped", 3.0), known[2]], "a run that is gone has no score"
    GridRecord(grid(resume="never")).save()
    assert states() == [("waiting", None)] * 3, "they are trained anew"


class FakeTrial:
    """A run that ends with its code at the second look, or when it is stopped."""

    def __init__(self, code: int) -> None:
        self.code, self.looks, self.stopped_by = code, 0, 0

    console = Path("runs/sweep-1/slurm/7/7_0_log.out")

    def exit_code(self) -> int | None:
        self.looks += 1
        return EXIT_TERMINATED if self.stopped_by else self.code if self.looks == 2 else None

    def stop(self, number: int) -> None:
        self.stopped_by = number


class FakeRunner:
    """Starts nothing; remembers slots and the number of runs at once."""

    def __init__(self, *, signal_at: str = "") -> None:
        self.signal_at = signal_at
        self.slots: list[int] = []
        self.trials: list[FakeTrial] = []

    def start(self, job: Job, job_path: Path, *, slot: int) -> FakeTrial:
        assert job_path.exists()
        if job.name == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        self.slots.append(slot)
        self.trials.append(FakeTrial(3 if job.name == "b" else 0))
        return self.trials[-1]


def jobs(root: Path) -> list[Job]:
    return [Job(config=config_with(), overrides=[], name=name, root=str(root), sweep="sweep-1") for name in "abc"]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtrain.run.sweeps.pool.POLL_SECONDS", 0.0)


def test_trials_run_at_once_in_slots_of_their_own_and_a_failure_ends_none_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = FakeRunner()
    ends = [*side_by_side(jobs(tmp_path), Pool(runner, parallel=2, folder=tmp_path / "sweep-1"))]
    assert [(job.name, code) for job, code in ends] == [("a", 0), ("b", 3), ("c", 0)]
    assert runner.slots == [0, 1, 0]
    assert sorted(path.name for path in (tmp_path / "sweep-1/jobs").iterdir()) == ["a.json", "b.json", "c.json"]
    assert f"a: started, its console is {FakeTrial.console}\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_wish", [False, True])
def test_a_signal_or_a_wish_stops_those_that_run_and_starts_no_more(tmp_path: Path, is_wish: bool) -> None:
    runner, before = FakeRunner(), signal.getsignal(signal.SIGTERM)
    ends = side_by_side(jobs(tmp_path), Pool(runner, parallel=2, folder=tmp_path / "sweep-1"))
    assert next(ends)[0].name == "a"
    ask_to_stop(tmp_path / "sweep-1") if is_wish else os.kill(os.getpid(), signal.SIGTERM)
    rest = [(job.name, code) for job, code in ends]
    assert rest in ([("b", 3)], [("b", EXIT_TERMINATED)])
    assert len(runner.trials) == 2
    assert signal.getsignal(signal.SIGTERM) == before
