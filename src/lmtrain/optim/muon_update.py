"""The update of Muon: momentum, orthogonal directions, row sizes, movement; each part may be compiled.

Newton-Schulz with one tuned quintic: https://kellerjordan.github.io/posts/muon. Polar Express, the best quintic for
each iteration in turn: https://arxiv.org/abs/2505.16932, section 4. Row normalisation:
https://arxiv.org/abs/2510.05491.

An update is one graph where this rank has the matrices whole; otherwise collectives stand between its parts. Rates are
floats, or in a compiled update tensors without axes, so that a schedule's next value is not another graph.

A fused weight has several matrices below one another (queries, keys and values; gate and up). Its module names them by
`fused_rows`: the rows of each matrix, by the weight's name. Where ranks cut a layer, the whole weight has the rows of
the first rank's matrices first, then those of the second's, in the same order.
N matrices of R rows and C columns.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

Weight = TypeVar("Weight", bound=Tensor)


def buckets(weights: Sequence[Weight], *, num_values: int) -> list[list[Weight]]:
    """Return all weights as one bucket if they are few, otherwise the weights of each shape in several buckets.

    The buckets of a shape are full but for its last: a compiled update has two graphs a shape. A larger weight is one.
    """
    if sum(weight.numel() for weight in weights) <= num_values:
        return [[*weights]]
    alike: defaultdict[torch.Size, list[Weight]] = defaultdict(list)
    for weight in weights:
        alike[weight.shape].append(weight)
    found: list[list[Weight]] = []
    for shape, some in alike.items():
        num_each = max(1, num_values // shape.numel())
        found += [some[first : first + num_each] for first in range(0, len(some), num_each)]
    return found


Quintic = tuple[float, float, float]

# Singular values from 0.003 to 1 end in [0.68, 1.21].
NEWTON_SCHULZ: tuple[Quintic, ...] = ((3.4445, -4.7750, 2.0315),) * 5
# Rounding in bf16 may lift a singular value past 1, where Polar Express diverges: it is fed x / MARGIN.
MARGIN = 1.01
# Singular values from 0.001 to 1 end in [0.84, 1.13]: the published minimax band, widened by MARGIN.
POLAR_EXPRESS: tuple[Quintic, ...] = tuple(
    (a / MARGIN, b / MARGIN**3, c / MARGIN**5)
    for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )
)
QUINTICS = {"polar_express": POLAR_EXPRESS, "newton_schulz": NEWTON_SCHULZ}


class RowScales(NamedTuple):
    """Factors to even out the rows (or columns, whichever are more) of matrices, and the mean squares used."""

    scales: Tensor
    running: Tensor


def orthogonalize(matrices: Tensor, *, quintics: tuple[Quintic, ...], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Move every singular value to about 1, keeping the singular vectors: [N, R, C] -> [N, R, C].

    `dtype` is the products' format and the result's.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices  # the Gram matrix of the short side is the small one
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) * MARGIN + 1e-7)).to(dtype)
    for a, b, c in quintics:
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def mean_squares(matrices: Tensor, *, by_rows: bool) -> Tensor:
    """Return the mean square of each row in float32, [N, R, C] -> [N, R, 1], or of each column."""
    return matrices.float().square().mean(dim=-1 if by_rows else -2, keepdim=True)


def row_scales(now: Tensor, running: Tensor, *, beta: float) -> RowScales:
    """Return factors to divide rows by their running root mean square at the same norm of each matrix.

    `now` are the matrices' `mean_squares`; `running` those of earlier steps, fading by `beta` a step.
    """
    running = torch.lerp(running, now, 1 - beta)
    scales = running.clamp_min(1e-10).rsqrt()
    evened = (now * scales.square()).sum(dim=(-2, -1), keepdim=True)
    return RowScales(scales * (now.sum(dim=(-2, -1), keepdim=True) / evened.clamp_min(1e-20)).sqrt(), running)


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
        here = [(weights[name], rows) for name, rows in named.items() if name in weights]  # other stages have theirs
        found |= {weight: Matrices(weight.shape, rows) for weight, rows in here}
    return found


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
    """Return whether rows are evened, rather than columns: the longer side's, and of fused matrices always."""
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
