"""An agent's job, and a request from outside to stop it."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class LaunchJob:
    """One start of num_ranks ranks, each calling entry_point ("module:function") with the saved config's path."""

    num_ranks: int
    entry_point: str
    config_path: Path
    log_folder: Path
    run_folder: Path
    grace_seconds: float

    def log_path(self, rank: int) -> Path:
        """Return the file of a rank's output; rank 0 speaks to the terminal instead."""
        return self.log_folder / f"rank{rank}.log"

    def error_path(self, rank: int) -> Path:
        """Return the file of a rank's failure."""
        return self.log_folder / f"rank{rank}.error.json"


@dataclass
class StopRequest:
    """The first signal to stop the job, and the ranks' process ids to pass signals to."""

    number: int | None = None
    at: float = 0.0
    processes: list[int] = field(default_factory=list[int])

    def pass_on(self, number: int) -> bool:
        """Send a signal to every rank, and only to the ranks; return whether there are any.

        Their data loader workers share their process groups, and would die under a rank about to save.
        """
        if self.number is None:
            self.number, self.at = number, time.monotonic()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        return bool(self.processes)
