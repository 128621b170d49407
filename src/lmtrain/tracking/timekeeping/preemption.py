"""Seconds of a training process's waits for a processor busy with other work, by the kernel's count.

Linux counts each thread's wait on a run queue (schedstat, Documentation/scheduler/sched-stats.rst); elsewhere nothing
is known, and nothing is booked.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lmtrain.tracking.timekeeping.stopwatch import KINDS, Kind, Stopwatch

THREADS: Final = Path("/proc/self/task")
NANO: Final = 1e-9
SECONDS_BETWEEN: Final = 1.0


class Preemption:
    """Book such waiting on an account of its own, from the moment it is made on.

    `waited_before` are the counts at the stopwatch's beginning, to book all time since; None is from now on. Between
    two bookings waiting is taken from all kinds of time alike, as if it had been spread evenly over the clock; the
    beginning and the end of a pause are bookings.
    """

    def __init__(
        self, stopwatch: Stopwatch, *, threads: Path = THREADS, waited_before: Mapping[str, float] | None = None
    ) -> None:
        self._stopwatch = stopwatch
        self._threads = threads
        is_new = waited_before is None
        self._waited: Mapping[str, float] = waited_seconds(threads) if is_new else waited_before
        self._spent: dict[Kind, float] = stopwatch.seconds() if is_new else dict.fromkeys(KINDS, 0.0)
        self._booked_at = time.monotonic()

    def book_now_and_then(self) -> None:
        """Book, unless that was done within a second: asking about every thread takes a fifth of a millisecond."""
        if time.monotonic() - self._booked_at >= SECONDS_BETWEEN:
            self.book()

    def book(self) -> None:
        """Book the process's wait since the last time."""
        self._booked_at = time.monotonic()
        waited = waited_seconds(self._threads)
        # Threads that compute together wait for one another: the largest loss of one is the least loss of all.
        lost = max((seconds - self._waited.get(name, 0.0) for name, seconds in waited.items()), default=0.0)
        spent = self._stopwatch.seconds()
        grown: dict[Kind, float] = {kind: spent[kind] - self._spent[kind] for kind in KINDS}
        share = min(1.0, max(0.0, lost) / max(sum(grown.values()), 1e-9))
        for kind, seconds in grown.items():
            if kind != "preempted" and seconds > 0:
                self._stopwatch.move(seconds * share, source=kind, target="preempted")
        self._waited, self._spent = waited, self._stopwatch.seconds()


def waited_seconds(threads: Path = THREADS) -> dict[str, float]:
    """Return how long each thread of the process waited for a processor so far; empty where there is no such count."""
    found: dict[str, float] = {}
    if not threads.is_dir():
        return found
    with os.scandir(threads) as entries:  # every few steps, and pathlib takes three times as long
        for entry in entries:
            try:
                with open(f"{entry.path}/schedstat", "rb") as file:  # noqa: PTH123
                    found[entry.name] = int(file.read().split()[1]) * NANO
            except (OSError, IndexError, ValueError):  # a thread just ended
                continue
    return found
