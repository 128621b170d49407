"""Threads for writing one token at a time on a CPU."""

import os
from typing import Final

import torch
from torch import nn

# A token reads every weight once. 20 MB on two threads took 0.91 of the time of one on two idle cores, and 3.2 times as
# long beside two other busy processes: threads wait for one another at every product.
BYTES_OF_A_THREAD: Final = 64 * 2**20


def use_fitting_threads(model: nn.Module) -> None:
    """Give a small model on a CPU fewer threads; `OMP_NUM_THREADS` overrules."""
    weights = list(model.parameters())
    if "OMP_NUM_THREADS" in os.environ or any(weight.device.type != "cpu" for weight in weights):
        return
    num_bytes = sum(weight.nbytes for weight in weights)
    torch.set_num_threads(max(1, min(torch.get_num_threads(), num_bytes // BYTES_OF_A_THREAD)))
