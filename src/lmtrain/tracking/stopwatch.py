"""Where a process's seconds go: at every moment to exactly one kind, so that the kinds add up to the clock."""

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Final, Literal, get_args

Kind = Literal[
    "setup",
    "compile",
    "compute",
    "data_wait",
    "communication",
    "pipeline_bubble",
    "expert_wait",
    "generation",
    "rewards",
    "host_overhead",
    "checkpoint",
    "evaluation",
    "logging",
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
