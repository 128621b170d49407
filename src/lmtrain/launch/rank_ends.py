"""The ends of a job's ranks as one exit code, and notices about ranks that are stopped."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT, EXIT_REQUEUE, ConnectionLost
from lmtrain.storage import foreign_json

REFUSALS: Final = frozenset({EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_DATA})
REPORT_STOPPED_AFTER_SECONDS: Final = 10.0


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


def read_end(rank: int, exit_code: int, error_file: Path, *, seen_at: float) -> RankEnd:
    """Return a rank's end with the message and the time of its error file, where it wrote one."""
    try:
        reason = foreign_json.read(error_file)
        follows = reason.get("kind") == ConnectionLost.__name__
        return RankEnd(rank, exit_code, float(reason["time"]), message=str(reason["message"]), follows=follows)
    except (OSError, ValueError, KeyError):
        return RankEnd(rank, exit_code, seen_at)


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


@dataclass(kw_only=True)
class StoppedRanks:
    """Report ranks stopped by SIGSTOP, a debugger or a frozen terminal: the others wait for them silently.

    `grace_seconds` is how long ranks may take to end after a signal.
    """

    num_ranks: int
    grace_seconds: float
    _since: dict[int, float] = field(default_factory=dict[int, float])
    _reported: set[int] = field(default_factory=set[int])
    _has_reported_end: bool = False

    def notices(self, processes: Mapping[int, int], *, now: float, is_ending: bool = False) -> list[str]:
        """Return the notices at `now` (monotonic seconds) on the child processes by rank.

        A lasting stop is reported once, and so is its end; while the job `is_ending`, the wait for it at once.
        """
        lines: list[str] = []
        for rank, process in processes.items():
            name = f"rank {rank} of {self.num_ranks}"
            if not is_stopped(process):
                self._since.pop(rank, None)
                if rank in self._reported:
                    self._reported.remove(rank)
                    lines.append(f"{name} continues.")
                continue
            seconds, resume = now - self._since.setdefault(rank, now), f"`kill -CONT {process}` resumes it."
            if is_ending and not self._has_reported_end:
                self._has_reported_end = True
                lines.append(
                    f"{name} (process {process}) is stopped, so the job cannot end cleanly: waiting up to "
                    f"{self.grace_seconds:.0f} s, then all ranks are killed; {resume}"
                )
            elif seconds >= REPORT_STOPPED_AFTER_SECONDS and rank not in self._reported and not is_ending:
                self._reported.add(rank)
                lines.append(
                    f"{name} (process {process}) has been stopped for {seconds:.0f} s, and the others wait for it; "
                    f"{resume}"
                )
        return lines


def is_stopped(process: int) -> bool:
    """Return whether a child is stopped by a signal; the parent's own wait still sees the stop."""
    try:
        return os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has just ended
        return False
