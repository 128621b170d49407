"""The conditions for two runs of one command to be equal to the last bit: algorithms with one order of sums.

Seeds, data order and random numbers are pure functions of (seed, step, rank) anyway. The rest are kernels: those that
add by atomics, pick an algorithm by timing, or take a workspace of any size
(https://docs.pytorch.org/docs/stable/notes/randomness.html). It holds for the same machine, software, ranks and
threads.
"""

import ctypes
import gc
import os
import sys
from typing import Any, Final

import torch

# cuBLAS: one workspace size, so that it picks the same kernels; Inductor: heuristics in place of timing kernels.
ENVIRONMENT: Final = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TORCHINDUCTOR_DETERMINISTIC": "1"}
INDUCTOR: Final = "torch._inductor.config"


def be_deterministic() -> None:
    """Choose deterministic algorithms for this whole process, before it has used a GPU; operations without one raise.

    torch's filling of memory before its first write is switched off: that finds mistakes, and costs time.
    """
    os.environ.update(ENVIRONMENT)
    inductor: Any = sys.modules.get(INDUCTOR)
    if inductor is not None:  # it read the environment when it was imported
        inductor.deterministic = True
    order_sums(refuses=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def order_sums(*, refuses: bool) -> None:
    """Choose algorithms with one order of sums; an operation without one raises where this `refuses`, or else warns.

    On a CPU they cost nothing measurable: compiled gradients of embeddings are otherwise added by several threads at a
    time.
    """
    torch.use_deterministic_algorithms(True, warn_only=not refuses)  # noqa: FBT003  torch's own signature
    settings: Any = torch.utils.deterministic  # its attributes are made at run time
    settings.fill_uninitialized_memory = False


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


VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def answer_that_none_is_there() -> None:
    """Say for the rest of this process, and for its children, that no CUDA device is visible, if there is none.

    torch's Adam asks for one at every step, and each answer looks for NVIDIA's library on the disk again (torch 2.13):
    0.3 ms. What the environment says already stays.
    """
    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        os.environ.setdefault(VISIBLE, "")
