"""Shared by the processes of one job: its settings, requests to stop it, and its ranks' ends as one exit code."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT, EXIT_REQUEUE

REFUSALS = frozenset({EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_DATA})


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
        """Return the file of a rank's output; rank 0 writes to the terminal instead."""
        return self.log_folder / f"rank{rank}.log"

    def error_path(self, rank: int) -> Path:
        """Return the file of a rank's failure."""
        return self.log_folder / f"rank{rank}.error.json"


@dataclass
class StopRequest:
    """The first signal to stop the job, and the process ids of the ranks that signals are passed on to."""

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


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: exit_code is minus the signal's number if one killed it; `time` is time.monotonic's.

    `follows`: its connection to another rank broke, so the other rank's end explains this one.
    """

    rank: int
    exit_code: int
    time: float
    message: str | None = None
    follows: bool = False


def plain_exit_code(code: int) -> int:
    """Map a process's return code to an exit code: death by signal N is 128 + N.

    SIGUSR1 asks to be queued again, even if it arrived before anything could handle it.
    """
    if code == -signal.SIGUSR1:
        return EXIT_REQUEUE
    return 128 - code if code < 0 else code


def root_cause(ends: Sequence[RankEnd]) -> RankEnd:
    """Return the failed rank that explains the others.

    A refusal explains most, then death by a signal, then the earliest error with a message, then one without (often a
    broken connection), and last a known broken connection.
    """

    def order(end: RankEnd) -> tuple[int, float, int]:
        if end.exit_code in REFUSALS:
            return 0, 0.0, end.rank
        if end.follows:
            return 4, end.time, end.rank
        return (1 if end.exit_code < 0 else 2 if end.message else 3), end.time, end.rank

    return min(ends, key=order)


def describe(end: RankEnd, num_ranks: int, tail: str, log: Path) -> str:
    """Describe the failed rank, its end and its message; `tail` holds the last lines of its log."""
    killed = end.exit_code < 0
    how = f"was killed by {signal.Signals(-end.exit_code).name}" if killed else f"ended with exit code {end.exit_code}"
    lines = [f"rank {end.rank} of {num_ranks} {how}; the job was stopped."]
    lines += [end.message] if end.message else []
    lines += [f"the last lines of {log}:", *(f"  {line}" for line in tail.splitlines())] if tail else []
    return "\n".join(lines)
