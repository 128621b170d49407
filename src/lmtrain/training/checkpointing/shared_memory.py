"""Host memory shared with another process: it has no name, so nothing is left of it when both have ended.

A memfd rather than /dev/shm, often limited to 64 MB in a container: a write beyond it is a SIGBUS.
"""

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import EnvironmentProblem

SHARE_OF_FREE: Final = 0.9  # of free memory may be taken
CGROUPS: Final = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


Undo = Callable[[], object]


class SharedMemory:
    """Memory behind `descriptor`, to pass to a child process; None makes it, empty.

    `settle` prepares a new buffer, so that copies need not wait, and returns the call to undo that.
    """

    def __init__(self, descriptor: int | None = None, *, settle: Callable[[mmap.mmap], Undo] | None = None) -> None:
        self.descriptor = _nameless_file() if descriptor is None else descriptor
        self.buffer: mmap.mmap | None = None
        self.num_bytes = 0
        self._settle = settle
        self._unsettle: Undo | None = None

    def reserve(self, num_bytes: int) -> None:
        """Have at least so many bytes, truly there; their content stays, in a new `buffer`.

        Raises:
            EnvironmentProblem: The host has not so many free.
        """
        if num_bytes <= self.num_bytes:
            return
        there = os.fstat(self.descriptor).st_size
        require_room(num_bytes - there)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, num_bytes)
            elif num_bytes > there:  # macOS
                os.ftruncate(self.descriptor, num_bytes)
            self._leave_buffer()
            self.buffer = mmap.mmap(self.descriptor, num_bytes)
        except OSError as problem:
            raise _no_room(num_bytes, str(problem)) from problem
        self.num_bytes = num_bytes
        self._unsettle = self._settle(self.buffer) if self._settle else None

    def close(self) -> None:
        """Give it back, once nobody holds a view of it any more."""
        self._leave_buffer()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _leave_buffer(self) -> None:
        if self._unsettle is not None:
            self._unsettle()
        self.buffer, self._unsettle, self.num_bytes = None, None, 0


def require_room(num_bytes: int) -> None:
    """Refuse to take more memory than is free.

    Raises:
        EnvironmentProblem: The host has not so much.
    """
    free = free_host_bytes()
    if free is not None and num_bytes > SHARE_OF_FREE * free:
        raise _no_room(num_bytes, f"{format_quantity(free, 'bytes')} of host memory is free")


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes free for this process without swapping, by its host and container; None: unknown."""
    found = [_available(proc / "meminfo"), *(_left(cgroup / limit, cgroup / used) for limit, used in CGROUPS)]
    return min((num_bytes for num_bytes in found if num_bytes is not None), default=None)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("checkpoint")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _available(meminfo: Path) -> int | None:
    try:
        lines = [line.split() for line in meminfo.read_text().splitlines()]
    except OSError:
        return None
    return next((int(words[1]) * 1024 for words in lines if words and words[0] == "MemAvailable:"), None)


def _left(limit: Path, used: Path) -> int | None:
    try:
        return max(0, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: the word max
        return None


def _no_room(num_bytes: int, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"A copy of the state needs {format_quantity(num_bytes, 'bytes')}, but {why}.")
