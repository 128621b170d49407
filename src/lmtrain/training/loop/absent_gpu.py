"""Nobody looks for a GPU at every step of a machine without one."""

import os
from typing import Final

import torch

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


def answer_that_none_is_there() -> None:
    """Say for the rest of this process, and for its children, that no CUDA device is visible, where there is none.

    torch's Adam asks for one at every step, and each answer looks for NVIDIA's library on the disk again (torch 2.13):
    0.3 ms. What the environment says already stays.
    """
    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        os.environ.setdefault(VISIBLE, "")
