"""Keep the memory that a step frees for the next step's tensors, where tensors live in the host's memory.

glibc gives large blocks back to the system, and whoever takes them again pays for each of their pages: some steps of
the default task met 20,000 page faults, a tenth of their CPU seconds, others none (mallopt(3)).
"""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_KEPT_BYTES = 32 * 2**20  # as much as glibc takes


def keep_freed_memory() -> bool:
    """Tell this process's allocator so; return False where it is not glibc's."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES)) and bool(mallopt(TRIM_THRESHOLD, -1))
