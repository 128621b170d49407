"""Copies of the same numbers on several ranks, compared by sums of their bit patterns: one flipped bit changes one.

Every rank calls these together.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sums(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of each tensor's bit patterns as integers, of this rank's part: int64 [tensors]."""
    parts = (tensor.detach() for tensor in tensors)
    local = (part.to_local() if isinstance(part, DTensor) else part for part in parts)
    sums = [part.contiguous().view(INTEGERS[part.element_size()]).sum(dtype=torch.int64) for part in local]
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.int64)


def part_of(tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return this rank's place in the cuts of each tensor; ranks with the same places hold copies."""
    return tuple(_place(tensor) for tensor in tensors)


def replica_groups(parts: Sequence[object]) -> list[list[int]]:
    """Group ranks by their parts; those without a copy elsewhere are left out."""
    groups: dict[object, list[int]] = {}
    for rank, part in enumerate(parts):
        groups.setdefault(part, []).append(rank)
    return [ranks for ranks in groups.values() if len(ranks) > 1]


def _place(tensor: Tensor) -> tuple[int, ...]:
    if not isinstance(tensor, DTensor):
        return ()
    coordinates = tensor.device_mesh.get_coordinate() or []
    return tuple(at for at, cut in zip(coordinates, tensor.placements, strict=True) if isinstance(cut, Shard))
