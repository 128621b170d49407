"""Tell a person how a preparation goes: a live bar on a terminal, a line a stage everywhere, all on standard error."""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

from lmtrain.accounting.quantities import format_quantity

PLAIN_LINE_SECONDS = 10.0
BYTES_WORTH_A_RATE = 500_000


def tell(line: str) -> None:
    """Print a line where it disturbs no output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@final
class StageProgress:
    """What a stage has done so far."""

    def __init__(self, name: str, *, total_bytes: int | None, bar: Any | None) -> None:
        """Count from nothing; `total_bytes` None is not known, `bar` None is no terminal."""
        self._name = name
        self._total_bytes = total_bytes
        self._bar = bar
        self._task = None if bar is None else bar.add_task(name, total=total_bytes)
        self._started = self._told = time.monotonic()
        self._documents = self._tokens = self._text_bytes = 0
        self.notes: list[str] = []

    def advance(self, *, documents: int = 0, tokens: int = 0, text_bytes: int = 0) -> None:
        """Add what was done since the last call."""
        self._documents += documents
        self._tokens += tokens
        self._text_bytes += text_bytes
        if self._bar is not None:
            self._bar.update(self._task, completed=self._text_bytes, description=self.line())
        elif time.monotonic() - self._told > PLAIN_LINE_SECONDS:
            self._told = time.monotonic()
            tell(f"{self.line()} ...")

    def line(self) -> str:
        """Return the stage in one line: name, amounts, rate, seconds, notes."""
        seconds = time.monotonic() - self._started
        amounts = [
            f"{self._documents:,} documents" if self._documents else "",
            f"{format_quantity(self._tokens)} tokens" if self._tokens else "",
            self._bytes_done(seconds),
            f"{seconds:.1f} s",
            *self.notes,
        ]
        return f"  {self._name:<24} {', '.join(filter(None, amounts))}"

    def _bytes_done(self, seconds: float) -> str:
        if not self._text_bytes:
            return ""
        if self._text_bytes < BYTES_WORTH_A_RATE:
            return f"{self._text_bytes / 1e3:.1f} kB"
        of_total = f" of {self._total_bytes / 1e6:.1f}" if self._bar is not None and self._total_bytes else ""
        return f"{self._text_bytes / 1e6:.1f}{of_total} MB, {self._text_bytes / 1e6 / seconds:.1f} MB/s"


@contextmanager
def stage(name: str, *, total_bytes: int | None = None) -> Generator[StageProgress, None, None]:
    """Show a stage while it runs, and tell its line when it is done."""
    with _bar() as bar:
        progress = StageProgress(name, total_bytes=total_bytes, bar=bar)
        yield progress
    tell(progress.line())


@contextmanager
def _bar() -> Generator[Any | None, None, None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar
