"""A bound on the memory for reading a stranger's bytes: a library decodes what a few of them ask for."""

import resource
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MORE_BYTES: Final = 2 << 30
STATUS: Final = Path("/proc/self/statm")

_lock = threading.Lock()
_inside, _before = 0, (0, 0)


@contextmanager
def bounded_memory(*, more_bytes: int = MORE_BYTES) -> Generator[None]:
    """Give the process `more_bytes` of addresses beyond its present ones; what asks for more gets MemoryError.

    The bound is of the process: it stands while any thread is inside, and no limit from outside is raised. On systems
    without /proc there is none.
    """
    global _inside, _before  # a limit of the process
    with _lock:
        if _inside == 0 and STATUS.exists():
            _before = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (_lower(_before[0], addressed_bytes() + more_bytes), _before[1]))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and STATUS.exists():
                resource.setrlimit(resource.RLIMIT_AS, _before)


def addressed_bytes() -> int:
    """Return the size of this process's addresses."""
    return int(STATUS.read_text().split()[0]) * resource.getpagesize()


def _lower(limit: int, other: int) -> int:
    return other if limit == resource.RLIM_INFINITY else min(limit, other)
