"""The best size at each amount of compute: a parabola of the loss over log N, and a power law through the minima.

The second approach of arXiv 2203.15556. A budget whose lowest loss is at its smallest or largest model has no minimum
among its runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lmtrain.accounting.quantities import format_count
from lmtrain.errors import DataError
from lmtrain.report.scaling.law_fit import LawPoint

SAME_FLOPS: Final = 1.25  # runs of one budget differ by less: a last whole step, and 6 N D for the exact count
LEAST_CELLS: Final = 3
LEAST_BUDGETS: Final = 2


@dataclass(frozen=True, kw_only=True)
class IsoflopMinimum:
    """The best size of one amount of compute, its tokens and its loss."""

    flops: float
    num_parameters: float
    loss: float

    @property
    def tokens(self) -> float:
        """Return the tokens of the amount at this size."""
        return self.flops / (6 * self.num_parameters)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """N = factor * C^exponent."""

    factor: float
    exponent: float

    def num_parameters(self, flops: float) -> float:
        """Return the best size of an amount of compute."""
        return self.factor * flops**self.exponent


@dataclass(frozen=True, kw_only=True)
class IsoflopFit:
    """The minima of the budgets that have one, the law through them (None: too few), and why the others have none."""

    minima: tuple[IsoflopMinimum, ...]
    law: PowerLaw | None
    left_out: Mapping[str, str]


def isoflop_fit(budgets: Mapping[float, Sequence[LawPoint]]) -> IsoflopFit:
    """Find the minimum of each budget of FLOPs, and the law through them.

    Raises:
        DataError: No budget has a minimum.
    """
    minima: list[IsoflopMinimum] = []
    left_out: dict[str, str] = {}
    for flops, points in sorted(budgets.items()):
        reason = why_no_minimum(points)
        if reason is None:
            minima.append(_minimum(flops, points))
        else:
            left_out[f"{flops:.3g}"] = reason
    if not minima:
        reasons = "; ".join(f"{budget} FLOPs: {reason}" for budget, reason in left_out.items())
        raise DataError(f"No budget has a best size within its models: {reasons}. Sweep smaller or larger models too.")
    return IsoflopFit(minima=tuple(minima), law=_law(minima), left_out=left_out)


def why_no_minimum(points: Sequence[LawPoint]) -> str | None:
    """Tell why the points of one budget have no minimum within their sizes; None where they have one."""
    sizes = _means(points)
    if len(sizes) < LEAST_CELLS:
        return f"{format_count(len(sizes), 'size')}, it needs {LEAST_CELLS}"
    best = min(sizes, key=lambda size: sizes[size])
    if best == min(sizes):
        return f"the smallest model, {best:.3g} parameters, is the best"
    return f"the largest model, {best:.3g} parameters, is the best" if best == max(sizes) else None


def _means(points: Sequence[LawPoint]) -> dict[float, float]:
    """Return the mean loss of each size: seeds repeat."""
    by_size: dict[float, list[float]] = {}
    for point in points:
        by_size.setdefault(point.num_parameters, []).append(point.loss)
    return {size: float(np.mean(losses)) for size, losses in by_size.items()}


def _minimum(flops: float, points: Sequence[LawPoint]) -> IsoflopMinimum:
    """Fit a parabola over log N through the best size and its neighbours."""
    sizes = _means(points)
    ordered = sorted(sizes)
    best = min(range(len(ordered)), key=lambda index: sizes[ordered[index]])
    near = ordered[max(0, best - 2) : best + 3]
    x = np.log(near) - np.log(ordered[best])
    curve, slope, level = np.polyfit(x, [sizes[size] for size in near], 2)
    place = float(np.clip(-slope / (2 * curve), x[0], x[-1])) if curve > 0 else 0.0
    loss = level + slope * place + curve * place**2
    return IsoflopMinimum(flops=flops, num_parameters=float(ordered[best] * np.exp(place)), loss=float(loss))


def _law(minima: Sequence[IsoflopMinimum]) -> PowerLaw | None:
    if len(minima) < LEAST_BUDGETS:
        return None
    logs = np.log([(each.flops, each.num_parameters) for each in minima])
    exponent, constant = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return PowerLaw(factor=float(np.exp(constant)), exponent=float(exponent))
