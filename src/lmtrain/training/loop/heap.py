"""Keep a step's freed memory for the next one, on a CPU.

glibc gives the end of its heap and every large block back to the kernel as soon as they are free. The next step asks
for the same bytes again, and the kernel maps and clears them page by page: a quarter of the default run's time
(docs/log.md).
"""

import ctypes
import gc
import os
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # these three from <malloc.h>
M_TOP_PAD: Final = -2
M_MMAP_THRESHOLD: Final = -3
NEVER: Final = -1
LARGEST_KEPT_BYTES: Final = 1 << 30  # of one tensor
LARGEST_OF_OLD_GLIBC: Final = 32 << 20  # before 2.35
GROWS_BY_BYTES: Final = 64 << 20
SETTINGS: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory, for the rest of this process; return whether it will.

    Where the environment says how malloc is to do it, and where malloc is not glibc's, everything stays as it is.
    """
    if any(name in os.environ for name in SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    keeps_large = mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES) or mallopt(M_MMAP_THRESHOLD, LARGEST_OF_OLD_GLIBC)
    return bool(keeps_large and mallopt(M_TRIM_THRESHOLD, NEVER) and mallopt(M_TOP_PAD, GROWS_BY_BYTES))


def settle_objects() -> None:
    """Collect once, and leave the objects of compilation and set-up out of all later collections."""
    gc.collect()
    gc.freeze()


def give_back_freed_memory() -> None:
    """Give free memory back to the kernel, where malloc is glibc's."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
