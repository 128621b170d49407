import os
import signal
from pathlib import Path

import pytest

from lmtrain.errors import EXIT_TERMINATED
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps import side_by_side
from lmtrain.run.sweeps.side_by_side import TrialsSideBySide
from lmtrain.tracking.run_folder import ask_to_stop
from tests.configs import config_with


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
    monkeypatch.setattr(side_by_side, "POLL_SECONDS", 0.0)


def test_trials_run_at_once_in_slots_of_their_own_and_a_failure_ends_none_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = FakeRunner()
    ends = [*TrialsSideBySide(runner, parallel=2, folder=tmp_path / "sweep-1").ends(jobs(tmp_path))]
    assert [(job.name, code) for job, code in ends] == [("a", 0), ("b", 3), ("c", 0)]
    assert runner.slots == [0, 1, 0]
    assert sorted(path.name for path in (tmp_path / "sweep-1/jobs").iterdir()) == ["a.json", "b.json", "c.json"]
    assert f"a: started, its console is {FakeTrial.console}\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_wish", [False, True])
def test_a_signal_or_a_wish_stops_those_that_run_and_starts_no_more(tmp_path: Path, is_wish: bool) -> None:
    runner, before = FakeRunner(), signal.getsignal(signal.SIGTERM)
    ends = TrialsSideBySide(runner, parallel=2, folder=tmp_path / "sweep-1").ends(jobs(tmp_path))
    assert next(ends)[0].name == "a"
    ask_to_stop(tmp_path / "sweep-1") if is_wish else os.kill(os.getpid(), signal.SIGTERM)
    rest = [(job.name, code) for job, code in ends]
    assert rest in ([("b", 3)], [("b", EXIT_TERMINATED)])
    assert len(runner.trials) == 2
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_during_a_start_stops_that_run_too(tmp_path: Path) -> None:
    runner = FakeRunner(signal_at="b")
    ends = TrialsSideBySide(runner, parallel=1, folder=tmp_path / "sweep-1").ends(jobs(tmp_path))
    assert [(job.name, code) for job, code in ends] == [("a", 0), ("b", EXIT_TERMINATED)]
