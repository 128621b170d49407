"""From the ends of processes to one exit code for scripts to rely on."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DATA, EXIT_ENVIRONMENT, EXIT_REQUEUE

REFUSALS = frozenset({EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_DATA})


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: exit_code is minus the signal's number where one killed it; `time` is time.monotonic's.

    `follows`: its connection to another rank broke, whose end explains this one.
    """

    rank: int
    exit_code: int
    time: float
    message: str | None = None
    follows: bool = False


def plain_exit_code(code: int) -> int:
    """Map a process's return code to an exit code: death by signal N is 128 + N.

    SIGUSR1 asks to be queued again, also where it came before anything could handle it.
    """
    if code == -signal.SIGUSR1:
        return EXIT_REQUEUE
    return 128 - code if code < 0 else code


def root_cause(ends: Sequence[RankEnd]) -> RankEnd:
    """Pick the rank whose end explains the others', among those with a bad end before any was stopped on purpose.

    A refusal explains most, then death by a signal (nobody sent one yet), then the earliest error; a broken connection
    comes last, and before it an error without a message, which tends to be one.
    """

    def order(end: RankEnd) -> tuple[int, float, int]:
        if end.exit_code in REFUSALS:
            return 0, 0.0, end.rank
        if end.follows:
            return 4, end.time, end.rank
        return (1 if end.exit_code < 0 else 2 if end.message else 3), end.time, end.rank

    return min(ends, key=order)


def describe(end: RankEnd, num_ranks: int, tail: str, log: Path) -> str:
    """Describe the failed rank, its end, and its last words; tail holds the last lines of its log."""
    killed = end.exit_code < 0
    how = f"was killed by {signal.Signals(-end.exit_code).name}" if killed else f"ended with exit code {end.exit_code}"
    lines = [f"rank {end.rank} of {num_ranks} {how}; the job was stopped."]
    lines += [end.message] if end.message else []
    lines += [f"the last lines of {log}:", *(f"  {line}" for line in tail.splitlines())] if tail else []
    return "\n".join(lines)
