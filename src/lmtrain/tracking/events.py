"""Each rank's activities in time: events/rank<r>.jsonl, one span or mark a line, cheap enough to leave on.

A line is {"name": str, "start": unix seconds, "seconds": float, "step": int or absent, ...}; a mark has no seconds.
"""

import contextlib
import json
import math
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import LineFile
from lmtrain.tracking.stopwatch import Kind, Stopwatch, unix_seconds

FLUSH_SECONDS = 1.0
ACCOUNTS: Final = "accounts"  # the mark of their process
EARLY_STOPPING: Final = "early_stopping"  # the mark of an end by callbacks.early_stopping
TRACED: Final = "traced_step"  # the mark of a step with its seconds of own work and of waiting for other ranks
VALIDATION: Final = "validation"  # the pause with a graph of its own, without gradients
PAUSE: Final = "pause"  # the mark of a pause's beginning; its span follows at its end
# The ledger's kind of a pause's time.
PAUSES: Final[dict[str, Kind]] = {
    "first_step": "compile",
    VALIDATION: "evaluation",
    "text_samples": "evaluation",
    "generation": "generation",
    "rewards": "rewards",
    "checkpoint": "checkpoint",
    "trace": "logging",
}


class EventLog:
    """Append a rank's spans and marks to a folder's file (None: keep only the times).

    They reach the file about once a second and on close, from the first flush on: an attempt that is refused or has
    nothing left to train leaves no line.
    `paused_for` names the cause of training's present wait (None: nothing) and `paused_at` says since when, on
    time.monotonic's clock; `paused_seconds` sums all such waits. `last_pauses` has the newest of each name without its
    compilation, as a measure of those to come: the first validation compiles where `compiles_first` says so. While
    torch's profiler records steps `is_profiled` says so: it takes one trace at a time. `stopwatch` has every second of
    the process since `began` (on the same clock; None is now).
    """

    def __init__(self, folder: Path | None, rank: int, *, began: float | None = None) -> None:
        self._file = None if folder is None else LineFile(folder, f"events/rank{rank}.jsonl")
        self._lines: list[str] = []
        self._flushed_at = math.inf
        self.paused_for: str | None = None
        self.paused_at = 0.0
        self.paused_seconds = 0.0
        self.last_pauses: dict[str, float] = {}
        self.is_profiled = False
        self.compiles_first = False
        self.stopwatch = Stopwatch(began=began)

    @contextlib.contextmanager
    def span(self, name: str, **fields: str | float) -> Generator[None]:
        """Record how long the body took, also when it raises; fields such as step go with it."""
        began = time.monotonic()
        try:
            yield
        finally:
            start, seconds = unix_seconds(began), time.monotonic() - began
            self._write({"name": name, "start": round(start, 6), "seconds": round(seconds, 6), **fields})

    @contextlib.contextmanager
    def pause(self, name: str, **fields: str | float) -> Generator[None]:
        """Record a span without training, such as a validation; one inside another counts once."""
        outer, began = self.paused_for, time.monotonic()
        self.paused_for = name
        compiled_before, kind = self.stopwatch.seconds()["compile"], PAUSES.get(name, "host_overhead")
        if outer is None:
            self.paused_at = began
            compiles = self.compiles_first and name == VALIDATION and name not in self.last_pauses
            self.mark(PAUSE, pause=name, kind="compile" if compiles else kind)
            self.flush()  # a long one may be a killed process's last sign of life, or under way while others read
        apart = compile_time_apart(self.stopwatch) if self.compiles_first else contextlib.nullcontext()
        try:
            with apart, self.stopwatch.spending(kind), self.span(name, **fields):
                yield
        finally:
            seconds = time.monotonic() - began
            compiled = self.stopwatch.seconds()["compile"] - compiled_before
            self.paused_for = outer
            self.last_pauses[name] = max(0.0, seconds - compiled)
            if outer is None:
                self.paused_seconds += seconds

    def mark(self, name: str, **fields: str | float) -> None:
        """Record a moment."""
        self._write({"name": name, "start": round(unix_seconds(), 6), **fields})

    def mark_attempt(self, number: int, *, num_devices: int, compiles_first: bool = False) -> None:
        """Record the beginning of an attempt, with the number of its devices for its price."""
        self.compiles_first = compiles_first
        self.mark("attempt", attempt=number, started_at=self.stopwatch.started_at, num_devices=num_devices)

    def flush(self) -> None:
        """Hand all lines to the file now; on a full disk they wait for the next time, and no disk ends the run."""
        lines, self._lines = self._lines, []
        self._flushed_at = time.monotonic()
        if self._file is not None and self._file.descriptor >= 0:
            with contextlib.suppress(EnvironmentProblem):
                self._file.append(lines)

    def close(self) -> None:
        """Flush and give the file back; closing twice is fine."""
        self.flush()
        if self._file is not None:
            self._file.close()

    def _write(self, row: dict[str, str | float]) -> None:
        if self._file is None:
            return
        self._lines.append(json.dumps(row) + "\n")
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()


@contextlib.contextmanager
def compile_time_apart(stopwatch: Stopwatch) -> Generator[None]:
    """Book an evaluation's compilation as compilation: the first one compiles the graph without gradients.

    A first step is compilation as a whole, until the second one shows an ordinary step's time.
    """
    from torch._dynamo.callback import callback_handler  # seconds to import, spared to a run without compilation

    compiling = contextlib.ExitStack()

    def begin(_: object) -> None:
        if stopwatch.kind == "evaluation":
            compiling.enter_context(stopwatch.spending("compile"))

    def end(_: object) -> None:
        compiling.close()

    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(begin)
        callback_handler.remove_end_callback(end)
