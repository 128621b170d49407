"""A growing file of whole lines; a disk full for a moment only delays them."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json
from lmtrain.tracking import atomic_files

TAIL_BYTES: Final = 1 << 20
MAY_PASS: Final = (errno.ENOSPC, errno.EDQUOT)


class LineFile:
    """Append to the file at `path`; a full disk's refused lines, `num_waiting`, stay in memory for the next try.

    Raises:
        EnvironmentProblem: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._waiting: list[bytes] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            drop_torn_end(self.descriptor)
        except OSError as error:
            raise atomic_files.storage_problem(path, error) from error

    @property
    def num_waiting(self) -> int:
        """Return how many lines the disk has not taken yet."""
        return len(self._waiting)

    def append(self, lines: list[str]) -> OSError | None:
        """Write the waiting lines and these, newlines included; return the cause of their wait, None without any.

        Raises:
            EnvironmentProblem: The disk is not full, but broken or read-only.
        """
        self._waiting += [line.encode() for line in lines]
        whole = os.fstat(self.descriptor).st_size
        try:
            _write_all(self.descriptor, b"".join(self._waiting))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self.descriptor, whole)
            if error.errno in MAY_PASS:
                return error
            raise atomic_files.storage_problem(self.path, error) from error
        self._waiting.clear()
        return None

    def close(self) -> None:
        """Give the file back, without the lines still waiting; closing twice is fine."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def drop_torn_end(descriptor: int) -> None:
    """Cut a crash's leftovers at the end of a JSON-lines file: half a line, or lines of zero bytes."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - TAIL_BYTES)
    tail = os.pread(descriptor, size - start, start)
    whole = tail[: tail.rfind(b"\n") + 1]
    while whole and not _is_json(whole.splitlines()[-1]):
        whole = whole[: whole[:-1].rfind(b"\n") + 1]
    if len(whole) < len(tail):
        os.ftruncate(descriptor, start + len(whole))


def _is_json(line: bytes) -> bool:
    try:
        foreign_json.parse(line)
    except ValueError:
        return False
    return True


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
