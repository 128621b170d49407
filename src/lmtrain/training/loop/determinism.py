"""The conditions for two runs of one command to be equal to the last bit: algorithms with one order of sums.

Seeds, data order and random numbers are pure functions of (seed, step, rank) anyway. The rest are kernels: those that
add by atomics, pick an algorithm by timing, or take a workspace of any size
(https://docs.pytorch.org/docs/stable/notes/randomness.html). It holds for the same machine, software, ranks and
threads.
"""

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
