"""Runs of a sweep side by side: started in slots, stopped together by a signal or a request in the sweep's folder."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop
from lmtrain.training.stopping import handling

if TYPE_CHECKING:
    from lmtrain.run.sweeps.runners import Runner, RunningTrial

JOBS: Final = "jobs"  # folder of the runs' jobs and consoles
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Running:
    """A running run in its slot."""

    job: Job
    process: "RunningTrial"
    slot: int


class Pool:
    """At most `parallel` runs at once; `stopped_by` is the number of the signal that stopped them, 0 without one."""

    def __init__(self, runner: "Runner", parallel: int, folder: Path) -> None:
        self._runner, self._parallel, self._folder = runner, parallel, folder
        self.running: list[Running] = []
        self.stopped_by = 0

    @contextmanager
    def open(self) -> Generator[None]:
        """Handle signals inside this context; runs left by an error are stopped."""
        (self._folder / JOBS).mkdir(parents=True, exist_ok=True)
        with handling(self._hear):
            try:
                yield
            finally:
                self.stop()

    @property
    def has_room(self) -> bool:
        """Return whether a run may start."""
        self._look_for_request()
        return len(self.running) < self._parallel and not self.stopped_by

    def job_path(self, name: str) -> Path:
        """Return the file of a run's job."""
        return self._folder / JOBS / f"{name}.json"

    def start(self, job: Job) -> Running:
        """Save a job next to its console, and start it in a free slot."""
        path = self.job_path(job.folder.name)
        job.save(path)
        slot = next(each for each in range(self._parallel) if each not in {one.slot for one in self.running})
        started = Running(job, self._runner.start(job, path, slot=slot), slot)
        self.running.append(started)
        if self.stopped_by:  # a signal came during the start: submitting to SLURM takes a second
            started.process.stop(self.stopped_by)
        return started

    def ended(self) -> list[tuple[Running, int]]:
        """Wait a moment, and return the runs that have ended with their exit codes."""
        time.sleep(POLL_SECONDS)
        self._look_for_request()
        found = [(each, code) for each in self.running if (code := each.process.exit_code()) is not None]
        for each, _ in found:
            self.running.remove(each)
        return found

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Let the runs end after their steps, with checkpoints."""
        for each in self.running:
            each.process.stop(number)

    def _look_for_request(self) -> None:
        if is_asked_to_stop(self._folder):  # lmtrain stop
            forget_stop(self._folder)
            self._hear(signal.SIGTERM, None)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.stopped_by = number
        self.stop(number)
