"""The ends of a job's ranks as one exit code."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT, EXIT_REQUEUE, ConnectionLost
from lmtrain.storage import foreign_json

REFUSALS: Final = frozenset({EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_DATA})


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
