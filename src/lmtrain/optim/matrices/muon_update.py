"""The arithmetic of Muon's update of matrices: momentum, directions, row sizes, movement; each may be compiled.

A whole update is one graph where this rank has the matrices whole; else collectives stand between its parts. Rates are
floats, or in a compiled update tensors without axes: a schedule's next value then is no other graph.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lmtrain.optim.matrices.fused_matrices import Matrices
from lmtrain.optim.matrices.orthogonalize import Quintic, mean_squares, orthogonalize, row_scales

Rate = float | Tensor
Position = tuple[int, int]  # of a weight among those of a step, and of a matrix in it


class Recipe(NamedTuple):
    """What stays the same over a run's steps."""

    quintics: tuple[Quintic, ...]
    dtype: torch.dtype  # of the products and of directions
    row_beta: float | None
    cautious_decay: bool


class StepRates(NamedTuple):
    """What schedules change; a `decay` of None takes nothing off the weights."""

    lr: Rate
    momentum: Rate
    decay: Rate | None

    def as_tensors(self) -> "StepRates":
        """Return them for a compiled update, on the host: its kernels take them as arguments."""
        decay = None if self.decay is None else torch.as_tensor(self.decay)
        return StepRates(torch.as_tensor(self.lr), torch.as_tensor(self.momentum), decay)


def update_all(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    fused: Sequence[Matrices | None],
    factors: Sequence[float],
    rates: StepRates,
    recipe: Recipe,
) -> None:
    """Move whole weights by their gradients; `squares` are the running row sizes, empty without `row_beta`."""
    sources = begin(gradients, averages, rates.momentum)
    directions, sizes = direct(sources, fused, recipe)
    scales = even(sizes, squares, fused, recipe.row_beta)
    move(weights, directions, scales, factors, rates, recipe)


def begin(gradients: Sequence[Tensor], averages: Sequence[Tensor], momentum: Rate) -> list[Tensor]:
    """Take gradients into their running averages and return the sources of directions, one step ahead of these."""
    sources: list[Tensor] = []
    for gradient, average in zip(gradients, averages, strict=True):
        average.lerp_(gradient, 1 - momentum)
        sources.append(torch.lerp(gradient, average, momentum))
    return sources


def direct(
    sources: Sequence[Tensor], fused: Sequence[Matrices | None], recipe: Recipe
) -> tuple[list[Tensor], list[Tensor]]:
    """Return directions, and the mean squares of their rows: all matrices of one shape at once."""
    pieces, alike = _pieces(sources, fused)
    directions: dict[Position, Tensor] = {}
    sizes: dict[Position, Tensor] = {}
    for (shape, is_by_rows), positions in alike.items():
        stacked = (len(positions), *shape[:-2])  # experts are stacks already
        # Neither pieces nor their stack are held beyond their last use.
        direction = orthogonalize(
            torch.stack([pieces.pop(position) for position in positions]).flatten(0, -3),
            quintics=recipe.quintics,
            dtype=recipe.dtype,
        )
        directions |= zip(positions, direction.unflatten(0, stacked), strict=True)
        sizes |= zip(positions, mean_squares(direction, by_rows=is_by_rows).unflatten(0, stacked), strict=True)
    for i, matrices in enumerate(fused):
        if matrices is not None:
            places = [(i, j) for j in range(len(matrices.rows))]
            directions[i, 0] = matrices.join_updates([directions[place] for place in places])
            sizes[i, 0] = matrices.join([sizes[place] for place in places])
    every = range(len(sources))
    return [directions[i, 0] for i in every], [sizes[i, 0] for i in every]


def _pieces(
    sources: Sequence[Tensor], fused: Sequence[Matrices | None]
) -> tuple[dict[Position, Tensor], dict[tuple[tuple[int, ...], bool], list[Position]]]:
    """Return each matrix, and the positions of those of one shape."""
    pieces: dict[Position, Tensor] = {}
    alike: defaultdict[tuple[tuple[int, ...], bool], list[Position]] = defaultdict(list)
    for i, (source, matrices) in enumerate(zip(sources, fused, strict=True)):
        for j, matrix in enumerate((source,) if matrices is None else matrices.split(source)):
            pieces[i, j] = matrix
            alike[tuple(matrix.shape), by_rows(matrix, matrices)].append((i, j))
    return pieces, alike


def by_rows(weight: Tensor, fused: Matrices | None) -> bool:
    """Tell whether rows are evened, rather than columns: the longer side's, and of fused matrices always."""
    return fused is not None or weight.shape[-2] >= weight.shape[-1]


def even(
    sizes: Sequence[Tensor], squares: Sequence[Tensor], fused: Sequence[Matrices | None], row_beta: float | None
) -> list[Tensor | None]:
    """Return the factors that even out rows, and take their sizes into the running ones; None without `row_beta`."""
    scales: list[Tensor | None] = [None] * len(sizes)
    if row_beta is None:
        return scales
    for i, (now, running, matrices) in enumerate(zip(sizes, squares, fused, strict=True)):
        found = (row_scales if matrices is None else matrices.row_scales)(now, running, beta=row_beta)
        running.copy_(found.running)
        scales[i] = found.scales
    return scales


def move(
    weights: Sequence[Tensor],
    directions: Sequence[Tensor],
    scales: Sequence[Tensor | None],
    factors: Sequence[float],
    rates: StepRates,
    recipe: Recipe,
) -> None:
    """Decay weights, or this rank's parts of them, and move them along their directions by the rate times a factor."""
    for weight, unscaled, scale, factor in zip(weights, directions, scales, factors, strict=True):
        direction = unscaled if scale is None else unscaled * scale
        if rates.decay is not None:
            if recipe.cautious_decay:
                _subtract(weight, torch.where(weight * direction > 0, weight, 0), rates.decay)
            else:
                weight.mul_(1 - rates.decay)
        _subtract(weight, direction, rates.lr * factor)


def _subtract(weight: Tensor, direction: Tensor, rate: Rate) -> None:
    if isinstance(rate, Tensor):
        weight.sub_(direction.to(weight.dtype) * rate)
    else:
        weight.sub_(direction, alpha=rate)
