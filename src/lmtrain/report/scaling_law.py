"""Scaling laws fitted to a sweep's runs: the loss as a function of parameters N and tokens D, and the best sizes.

The law is loss(N, D) = E + A / N^alpha + B / D^beta, in nats per token (arXiv 2203.15556, equation 2). The fit
minimises the Huber loss (delta 1e-3) of the difference of logarithms, with E, A and B as exponentials, from a grid of
starts (appendix D.3, and its replication, arXiv 2404.10102). The bands are percentiles of refits to runs drawn with
replacement.

The best size at an amount of compute is the minimum of a parabola of the loss over log N. A budget whose lowest loss is
at its smallest or largest model has none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.scaling_laws.compute_optimal import LossSurface
from lmtrain.errors import DataError

DELTA: Final = 1e-3
STARTS: Final = tuple(product((0.0,), (5.0, 10.0), (5.0, 10.0), (0.3, 0.6), (0.3, 0.6)))  # log E, A, B; alpha, beta
TOLERANCES: Final = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-12)
LEAST_RUNS: Final = 7
NUM_DRAWS: Final = 200
BAND: Final = (2.5, 97.5)  # percent
SAME_FLOPS: Final = 1.25  # runs of one budget differ by less: a last whole step, and 6 N D for the exact count
LEAST_CELLS: Final = 3


@dataclass(frozen=True, kw_only=True)
class LawPoint:
    """One run: parameters, tokens, final loss in nats per token."""

    num_parameters: float
    tokens: float
    loss: float

    @property
    def flops(self) -> float:
        """Return 6 N D."""
        return 6 * self.num_parameters * self.tokens


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """The law of some runs, its refits to draws of them, and the largest compute among them."""

    surface: LossSurface
    draws: tuple[LossSurface, ...]
    residual: float
    most_flops: float

    def band(self, of: Any) -> tuple[float, float]:
        """Return the 95% band of a number that a law gives, over the draws."""
        values = [of(each) for each in self.draws]
        low, high = np.nanpercentile(values, BAND)
        return float(low), float(high)


def fit_law(points: Sequence[LawPoint], *, num_draws: int = NUM_DRAWS, seed: int = 1) -> LawFit:
    """Fit the law, and again to each of `num_draws` draws of the points.

    Raises:
        DataError: Too few runs, or all of one size or of one number of tokens.
    """
    _require(points)
    best, residual = _fit(points, STARTS)
    generator = np.random.default_rng(seed)
    draws: list[LossSurface] = []
    while len(draws) < num_draws:
        drawn = [points[index] for index in generator.integers(len(points), size=len(points))]
        if len({each.num_parameters for each in drawn}) > 1 and len({each.tokens for each in drawn}) > 1:
            draws.append(_surface(_fit(drawn, [best])[0]))
    most = max(point.flops for point in points)
    return LawFit(surface=_surface(best), draws=tuple(draws), residual=residual, most_flops=most)


def optimum(surface: LossSurface, flops: float) -> tuple[float, float]:
    """Return the parameters and tokens of the lowest loss at 6 N D = `flops` (arXiv 2203.15556, equation 4)."""
    alpha, beta = surface.parameters_exponent, surface.tokens_exponent
    ratio = (alpha * surface.per_parameters / (beta * surface.per_tokens)) ** (1 / (alpha + beta))
    num_parameters = ratio * (flops / 6) ** (beta / (alpha + beta))
    return num_parameters, flops / (6 * num_parameters)


def _require(points: Sequence[LawPoint]) -> None:
    if len(points) < LEAST_RUNS:
        raise DataError(f"{len(points)} finished runs are too few for a scaling law; it needs {LEAST_RUNS} or more.")
    sizes, tokens = {point.num_parameters for point in points}, {point.tokens for point in points}
    if min(len(sizes), len(tokens)) < 3:
        raise DataError(
            f"The runs have {len(sizes)} sizes and {len(tokens)} numbers of tokens; a scaling law needs three or more "
            "of each: sweep the model's size and the budget, as experiment=isoflop does."
        )


def _fit(points: Sequence[LawPoint], starts: Iterable[Sequence[float]]) -> tuple[Sequence[float], float]:
    """Return log E, log A, log B, alpha and beta of the best fit, and the root mean square of its errors."""
    from scipy.optimize import least_squares  # half a second, of this command alone

    log_n, log_d, log_loss = np.log([(point.num_parameters, point.tokens, point.loss) for point in points]).T

    def errors(law: Any) -> Any:
        log_e, log_a, log_b, alpha, beta = law
        return np.logaddexp(np.logaddexp(log_e, log_a - alpha * log_n), log_b - beta * log_d) - log_loss

    found: list[Any] = []
    with np.errstate(all="ignore"):  # of steps that it takes back
        for start in starts:  # Huber's loss is nearly flat far away, where squares are not
            near = least_squares(errors, start, x_scale="jac", **TOLERANCES).x
            found.append(least_squares(errors, near, loss="huber", f_scale=DELTA, x_scale="jac", **TOLERANCES))
    best = min(found, key=lambda fit: fit.cost)
    return best.x, float(np.sqrt(np.mean(best.fun**2)))


def _surface(law: Sequence[float]) -> LossSurface:
    irreducible, per_parameters, per_tokens = (float(np.exp(term)) for term in law[:3])
    return LossSurface(
        irreducible=irreducible,
        per_parameters=per_parameters,
        per_tokens=per_tokens,
        parameters_exponent=float(law[3]),
        tokens_exponent=float(law[4]),
    )


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
class IsoflopFit:
    """The minima of the budgets, and why the other budgets have none."""

    minima: tuple[IsoflopMinimum, ...]
    left_out: Mapping[str, str]


def isoflop_fit(budgets: Mapping[float, Sequence[LawPoint]]) -> IsoflopFit:
    """Find the minimum of each budget of FLOPs."""
    minima: list[IsoflopMinimum] = []
    left_out: dict[str, str] = {}
    for flops, points in sorted(budgets.items()):
        reason = why_no_minimum(points)
        if reason is None:
            minima.append(_minimum(flops, points))
        else:
            left_out[f"{flops:.3g}"] = reason
    return IsoflopFit(minima=tuple(minima), left_out=left_out)


def why_no_minimum(points: Sequence[LawPoint]) -> str | None:
    """Say why the points of one budget have no minimum within their sizes; None if they have one."""
    sizes = _means(points)
    if len(sizes) < LEAST_CELLS:
        return f"{format_count(len(sizes), 'size')}, it needs {LEAST_CELLS}"
    best = min(sizes, key=lambda size: sizes[size])
    if best == min(sizes):
        return f"the smallest model, {best:.3g} parameters, is the best"
    return f"the largest model, {best:.3g} parameters, is the best" if best == max(sizes) else None


def _means(points: Sequence[LawPoint]) -> dict[float, float]:
    """Return the mean loss of each size over its seeds."""
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
