"""Show a preparation's progress on standard error: one changing line on a terminal, else a line a minute."""

import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.data.dataset_folder import notify

TERMINAL_SECONDS, PLAIN_SECONDS = 0.1, 60.0  # between lines
FIRST_SECONDS = 5.0  # before the first plain one
BYTES_WORTH_A_RATE = 500_000


@final
class StageProgress:
    """A stage's work so far; `notes` are printed at its end."""

    def __init__(self, name: str) -> None:
        """Count from nothing."""
        self.notes: list[str] = []
        self._name = name
        self._started = self._shown_at = time.monotonic()
        self._documents = self._tokens = self._text_bytes = 0
        self._is_terminal = sys.stderr.isatty()
        self._pause = TERMINAL_SECONDS if self._is_terminal else FIRST_SECONDS

    def advance(
        self, *, documents: int = 0, tokens: int = 0, text_bytes: int = 0, fraction: float | None = None
    ) -> None:
        """Add the work since the last call; `fraction`, where known, is the finished share of the whole."""
        self._documents += documents
        self._tokens += tokens
        self._text_bytes += text_bytes
        now = time.monotonic()
        if now - self._shown_at < self._pause:
            return
        self._shown_at = now
        left = ""
        if fraction:
            seconds_left = (now - self._started) * (1 - min(fraction, 1)) / fraction
            left = f"{min(fraction, 1):.0%}, {format_quantity(seconds_left, 'seconds')} left, "
        line = f"  {self._name:<24} {left}{self._amounts()}"
        if self._is_terminal:
            sys.stderr.write(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K")
            sys.stderr.flush()
        else:
            self._pause = PLAIN_SECONDS
            notify(f"{line} ...")

    def finish(self) -> None:
        """Print the whole work in one line: name, amounts, rate, seconds, notes."""
        clear = "\r\x1b[K" if self._is_terminal else ""
        notify(f"{clear}  {self._name:<24} {', '.join([self._amounts(), *self.notes])}")

    def _amounts(self) -> str:
        seconds = time.monotonic() - self._started
        amounts = [f"{seconds:.1f} s"]
        if self._text_bytes >= BYTES_WORTH_A_RATE:
            amounts.insert(0, f"{self._text_bytes / 1e6 / max(seconds, 1e-3):.1f} MB/s")
        if self._text_bytes:
            amounts.insert(0, format_quantity(self._text_bytes, "bytes"))
        if self._tokens:
            amounts.insert(0, f"{format_quantity(self._tokens)} tokens")
        if self._documents:
            amounts.insert(0, f"{self._documents:,} documents")
        return ", ".join(amounts)


@contextmanager
def stage(name: str) -> Generator[StageProgress, None, None]:
    """Show a stage while it runs, and print its line at the end."""
    progress = StageProgress(name)
    yield progress
    progress.finish()
