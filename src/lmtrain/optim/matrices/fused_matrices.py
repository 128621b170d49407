"""Matrices one below the other in one weight: queries, keys and values; gate and up.

A module names them by `fused_rows`: the rows of each matrix, by the weight's name. Where ranks cut a layer, the whole
weight has the rows of the first rank's matrices first, then those of the second's, in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn

from lmtrain.optim.matrices.orthogonalize import RowScales, row_scales


@final
@dataclass(frozen=True)
class Matrices:
    """The matrices of one weight [..., R, C], by their rows on one of the layer's tensor ranks, if it is cut."""

    shape: torch.Size
    rows: tuple[int, ...]

    @cached_property
    def num_ranks(self) -> int:
        """Return how many ranks cut the layer."""
        return self.shape[-2] // sum(self.rows)

    @cached_property
    def growth(self) -> float:
        """Return the largest factor of an update among the matrices."""
        return max(self._growths)

    @cached_property
    def _growths(self) -> list[float]:
        return [growth(self.num_ranks * each, self.shape[-1]) for each in self.rows]

    def split(self, weight: Tensor) -> Sequence[Tensor]:
        """Cut the weight: [..., R, C] -> [..., r, C] each."""
        if self.num_ranks == 1:
            return weight.split_with_sizes(self.rows, dim=-2)
        pieces = weight.unflatten(-2, (self.num_ranks, -1)).split_with_sizes(self.rows, dim=-2)
        return [piece.flatten(-3, -2) for piece in pieces]

    def join(self, matrices: Sequence[Tensor]) -> Tensor:
        """Put the weight together again: [..., r, C] each -> [..., R, C]."""
        if self.num_ranks == 1:
            return torch.cat([*matrices], dim=-2)
        pieces = [matrix.unflatten(-2, (self.num_ranks, -1)) for matrix in matrices]
        return torch.cat(pieces, dim=-2).flatten(-3, -2)

    def join_updates(self, matrices: Sequence[Tensor]) -> Tensor:
        """Put updates together, each at its matrix's share of the largest growth."""
        if len({*self._growths}) == 1:
            return self.join(matrices)
        shares = [each / self.growth for each in self._growths]
        return self.join([matrix * share for matrix, share in zip(matrices, shares, strict=True)])

    def row_scales(self, now: Tensor, running: Tensor, *, beta: float) -> RowScales:
        """Return `row_scales` of each matrix, one below the other."""
        pieces = zip(self.split(now), self.split(running), strict=True)
        scales, averages = zip(*(row_scales(*piece, beta=beta) for piece in pieces), strict=True)
        return RowScales(self.join(scales), self.join(averages))


def growth(num_rows: int, num_columns: int) -> float:
    """Return the factor for an update of a tall matrix: its outputs then move as much as a square one's."""
    return max(1.0, num_rows / num_columns) ** 0.5


def fused_matrices(model: nn.Module) -> dict[Tensor, Matrices]:
    """Return the matrices of every fused weight of a model."""
    found: dict[Tensor, Matrices] = {}
    for module in model.modules():
        named: Mapping[str, tuple[int, ...]] = getattr(module, "fused_rows", {})
        weights = dict(module.named_parameters()) if named else {}  # `weight` itself may give a copy
        found |= {weights[name]: Matrices(weights[name].shape, rows) for name, rows in named.items()}
    return found
