"""Sums over every rank of a run, plain sums in one process."""

from torch import Tensor, distributed


def sum_over_ranks(sums: Tensor) -> Tensor:
    """Add up a tensor over all ranks, in place; every rank must call it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(sums)
    return sums
