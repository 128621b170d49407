"""Where a process's seconds go: at every moment to exactly one kind, so that the kinds add up to the clock."""

import contextlib
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Final, Literal, get_args

Kind = Literal[
    "setup",
    "compile",
    "compute",
    "data_wait",
    "communication",
    "generation",
    "host_overhead",
    "checkpoint",
    "evaluation",
    "logging",
    "preempted",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Stopwatch:
    """Runs from `began` (on time.monotonic's clock; None is now) on, first for set-up.

    `started_at` is that moment in unix seconds; `on_change`, where set, is called with each new kind.
    """

    def __init__(self, *, began: float | None = None) -> None:
        self._since = time.monotonic() if began is None else began
        self.started_at = unix_seconds(self._since)
        self.kind: Kind = "setup"
        self.on_change: Callable[[Kind], object] | None = None
        self._seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)

    def switch(self, kind: Kind) -> Kind:
        """Count the time from now on as `kind`; return the kind before. The first step's work counts as compilation."""
        now = time.monotonic()
        before = self.kind
        self._seconds[before] += now - self._since
        self._since = now
        if not (before == "compile" and kind == "compute"):
            self.kind = kind
            if self.on_change is not None and kind != before:
                self.on_change(kind)
        return before

    @contextlib.contextmanager
    def spending(self, kind: Kind) -> Generator[None]:
        """Spend the body on `kind`, then go on as before.

        A body may outlast its callback, as the first step does: after it comes host overhead, not that callback's
        logging.
        """
        before = self.switch(kind)
        try:
            yield
        finally:
            self.switch("host_overhead" if before == "logging" else before)

    @property
    def elapsed_seconds(self) -> float:
        """Return how long it has run."""
        return sum(self.seconds().values())

    def seconds(self) -> dict[Kind, float]:
        """Return the seconds so far by kind, up to this moment."""
        self.switch(self.kind)
        return dict(self._seconds)

    def move(self, seconds: float, *, source: Kind, target: Kind) -> None:
        """Move seconds to another kind, at most as many as there are, as from a first step's compilation."""
        seconds = min(seconds, self._seconds[source])
        self._seconds[source] -= seconds
        self._seconds[target] += seconds


_AT_START: Final = time.time() - time.monotonic()


def unix_seconds(at: float | None = None) -> float:
    """Return the moment `at` of time.monotonic's clock, None for now, in unix seconds."""
    return _AT_START + (time.monotonic() if at is None else at)


THREADS: Final = Path("/proc/self/task")
NANO: Final = 1e-9
SECONDS_BETWEEN: Final = 1.0


class Preemption:
    """Book such waiting on a separate account, from the moment it is made on.

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
    """Return how long each thread of the process waited for a processor so far; empty without such counts."""
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
