"""The reading of files: its progress, and its bytes without text."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol, final

from data_pipelines.sources.utf8 import Utf8


class Position(Protocol):
    """Something that knows how far into a file the reading is."""

    def num_raw_bytes(self) -> int:
        """Return the bytes read so far."""
        ...


@final
class FileReading:
    """One pass over files of `total_bytes`."""

    def __init__(self, *, total_bytes: int) -> None:
        """Begin before the first file."""
        self.utf8 = Utf8()
        self._total_bytes = total_bytes
        self._bytes_behind = 0
        self._open: Position | None = None

    @contextmanager
    def of(self, position: Position) -> Generator[None, None, None]:
        """Follow the reading of one file."""
        self._open = position
        try:
            yield
        finally:
            self._open = None

    def leave_behind(self, num_bytes: int) -> None:
        """Count a file as read."""
        self._bytes_behind += num_bytes

    def fraction(self) -> float | None:
        """Return how much of all files has been read, or None where their sizes are not known."""
        if not self._total_bytes:
            return None
        here = self._open.num_raw_bytes() if self._open else 0
        return min((self._bytes_behind + here) / self._total_bytes, 1.0)
