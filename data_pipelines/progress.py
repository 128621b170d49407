"""Show a person a preparation's progress, on standard error: a live bar on a terminal, else a line every few seconds.

Either shows documents, tokens, MB/s and, where the whole is known, the time left; a last line gives a stage's time.
"""

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

from lmtrain.accounting.quantities import format_quantity

PLAIN_LINE_SECONDS = 5.0
BAR_SECONDS = 0.1  # between updates of a bar, so that a document costs no more than two additions
BYTES_WORTH_A_RATE = 500_000
SECONDS_WORTH_A_FORECAST = 1.0


def tell(line: str) -> None:
    """Print a line where it disturbs no output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@final
class StageProgress:
    """A stage's work so far."""

    def __init__(
        self,
        name: str,
        *,
        total_tokens: int | None = None,
        total_bytes: int | None = None,
        total_documents: int | None = None,
        bar: Any | None = None,
    ) -> None:
        """Count from nothing; the first known total gives the time left; `bar` None: no terminal."""
        self._name = name
        self._total_tokens, self._total_bytes, self._total_documents = total_tokens, total_bytes, total_documents
        self._started = self._reported_at = time.monotonic()
        self._documents = self._tokens = self._text_bytes = 0
        self._bytes_of_before, self._fraction_of_before = 0, 0.0
        self._fraction: float | None = None
        self.notes: list[str] = []
        self._bar = bar
        self._task = None if bar is None else bar.add_task(name, total=1.0 if self._has_total() else None, stage=self)

    def advance(
        self,
        *,
        documents: int = 0,
        tokens: int = 0,
        text_bytes: int = 0,
        fraction: float | None = None,
        was_there: bool = False,
    ) -> None:
        """Add the work since the last call; `fraction`, where known, is the finished share of the whole.

        What an earlier build had done already, and `was_there`, counts for no speed.
        """
        self._documents += documents
        self._tokens += tokens
        self._text_bytes += text_bytes
        self._bytes_of_before += text_bytes if was_there else 0
        if fraction is not None:
            self._fraction = fraction
        if was_there:
            self._fraction_of_before = self.fraction_done() or 0.0
        if time.monotonic() - self._reported_at > (PLAIN_LINE_SECONDS if self._bar is None else BAR_SECONDS):
            self._reported_at = time.monotonic()
            self._show()

    def line(self) -> str:
        """Return the work in one line: name, amounts, rate, seconds, notes."""
        return f"  {self._name:<24} {', '.join(filter(None, [*self._amounts(), *self.notes]))}"

    def __str__(self) -> str:
        """Return the remaining time and the work so far, in one line."""
        return f"  {self._name:<24} {self.news}"

    @property
    def news(self) -> str:
        """Return the same without the name; the most important first, for narrow terminals cut it off."""
        return ", ".join(filter(None, [self._forecast(), *self._amounts()]))

    def fraction_done(self) -> float | None:
        """Return how much of the whole is done, or None where the whole is not known."""
        if self._fraction is not None:
            return min(self._fraction, 1.0)
        pairs = (
            (self._tokens, self._total_tokens),
            (self._text_bytes, self._total_bytes),
            (self._documents, self._total_documents),
        )
        return next((min(done / total, 1.0) for done, total in pairs if total), None)

    def _show(self) -> None:
        if self._bar is None:
            tell(f"{self} ...")
            return
        fraction = self.fraction_done()
        self._bar.update(self._task, completed=fraction or 0.0, total=None if fraction is None else 1.0)

    def _has_total(self) -> bool:
        return any((self._total_tokens, self._total_bytes, self._total_documents))

    def _amounts(self) -> list[str]:
        seconds = time.monotonic() - self._started
        return [
            f"{self._documents:,} documents" if self._documents else "",
            f"{format_quantity(self._tokens)} tokens" if self._tokens else "",
            *self._bytes_done(seconds),
            f"{seconds:.1f} s",
        ]

    def _bytes_done(self, seconds: float) -> list[str]:
        if not self._text_bytes:
            return []
        if self._text_bytes < BYTES_WORTH_A_RATE:
            return [f"{self._text_bytes / 1e3:.1f} kB"]
        before = f" ({self._bytes_of_before / 1e6:,.1f} before)" if self._bytes_of_before else ""
        rate = (self._text_bytes - self._bytes_of_before) / 1e6 / max(seconds, 1e-3)
        return [f"{self._text_bytes / 1e6:,.1f} MB{before}", f"{rate:.1f} MB/s"]

    def _forecast(self) -> str:
        seconds = time.monotonic() - self._started
        fraction = self.fraction_done()
        if not fraction or seconds < SECONDS_WORTH_A_FORECAST:
            return ""
        done_now = fraction - self._fraction_of_before
        if done_now <= 0:
            return f"{fraction:.0%}"
        left = format_quantity(seconds * (1 - fraction) / done_now, "seconds")
        return f"{fraction:.0%}, {left} left"


@contextmanager
def stage(
    name: str, *, total_tokens: int | None = None, total_bytes: int | None = None, total_documents: int | None = None
) -> Generator[StageProgress, None, None]:
    """Show a stage while it runs, and print its line at the end."""
    with _bar() as bar:
        progress = StageProgress(
            name, total_tokens=total_tokens, total_bytes=total_bytes, total_documents=total_documents, bar=bar
        )
        yield progress
    tell(progress.line())


@contextmanager
def _bar() -> Generator[Any | None, None, None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.file_proxy import FileProxy
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    if isinstance(sys.stderr, FileProxy):  # a stage inside a stage: there is one live display at most
        yield None
        return
    name = TextColumn("  {task.description}", markup=False, table_column=Column(min_width=24, no_wrap=True))
    share = BarColumn(bar_width=10, table_column=Column(min_width=10, no_wrap=True))
    cut_off = Column(no_wrap=True, overflow="ellipsis")
    news = TextColumn("{task.fields[stage].news}", markup=False, table_column=cut_off)
    with Progress(name, share, news, console=Console(stderr=True), transient=True) as bar:
        yield bar
