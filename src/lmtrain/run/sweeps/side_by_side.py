"""A grid's trials side by side: on devices of their own, or in SLURM's queue."""

import signal
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from lmtrain.run.stored_runs.job import Job
from lmtrain.run.sweeps.local_runner import Runner, RunningTrial
from lmtrain.run.sweeps.search import SIGNALS
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop

POLL_SECONDS: Final = 0.2
JOBS: Final = "jobs"


class TrialsSideBySide:
    """`parallel` trials at once; their jobs and consoles are files in the sweep's folder."""

    def __init__(self, runner: Runner, *, parallel: int, folder: Path) -> None:
        self._runner, self._parallel, self._jobs = runner, parallel, folder / JOBS
        self._folder = folder
        self._running: dict[int, tuple[Job, RunningTrial]] = {}
        self._is_stopped = False

    def ends(self, trials: Sequence[Job]) -> Generator[tuple[Job, int]]:
        """Train all trials; yield each with its exit code, as they end.

        A signal, or the wish for a stop in the folder, stops those that run, and no more begin.
        """
        self._jobs.mkdir(parents=True, exist_ok=True)
        before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        waiting = deque(trials)
        try:
            while self._running or (waiting and not self._is_stopped):
                if is_asked_to_stop(self._folder):  # lmtrain stop
                    forget_stop(self._folder)
                    self._stop(signal.SIGTERM, None)
                while waiting and not self._is_stopped and len(self._running) < self._parallel:
                    self._start(waiting.popleft())
                yield from self._ended()
                time.sleep(POLL_SECONDS)
        finally:
            for _, running in self._running.values():  # only after an error here
                running.stop(signal.SIGTERM)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, job: Job) -> None:
        path = self._jobs / f"{job.folder.name}.json"
        job.save(path)
        slot = next(each for each in range(self._parallel) if each not in self._running)
        running = self._runner.start(job, path, slot=slot)
        self._running[slot] = (job, running)
        print(f"{job.name}: started, its console is {running.console}", flush=True)
        if self._is_stopped:  # a signal came during the start: submitting to SLURM takes a second
            running.stop(signal.SIGTERM)

    def _ended(self) -> Generator[tuple[Job, int]]:
        for slot, (job, running) in [*self._running.items()]:
            code = running.exit_code()
            if code is not None:
                del self._running[slot]
                print(f"{job.name}: ended with exit code {code}", flush=True)
                yield job, code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._is_stopped = True
        for _, running in self._running.values():
            running.stop(number)
