"""Scaling laws fitted to a sweep's runs: the loss as a function of parameters N and tokens D, and the best sizes.

The law is loss(N, D) = E + A / N^alpha + B / D^beta, in nats per token (arXiv 2203.15556, equation 2). The fit
minimises the Huber loss (delta 1e-3) of the difference of logarithms, with E, A and B as exponentials, from a grid of
starts (appendix D.3, and its replication, arXiv 2404.10102). All starts take damped Gauss-Newton steps together. The
bands are percentiles of refits to runs drawn with replacement.

The best size at an amount of compute is the minimum of a parabola of the loss over log N, and a power law runs through
the minima (the paper's second approach). A budget whose lowest loss is at its smallest or largest model has none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.scaling_laws.compute_optimal import LossSurface
from lmtrain.errors import DataError

Values = npt.NDArray[np.float64]
DELTA: Final = 1e-3
STARTS: Final = ((-1.0, 0.0, 1.0), (0.0, 5.0, 10.0, 15.0), (0.0, 5.0, 10.0, 15.0), (0.2, 0.5, 0.9), (0.2, 0.5, 0.9))
NUM_STEPS: Final = 120
NUM_BEST: Final = 24  # starts that go on after the first steps
FIRST_STEPS: Final = 25
NUM_PARAMETERS: Final = 5
LEAST_RUNS: Final = 7
NUM_DRAWS: Final = 200
BAND: Final = (2.5, 97.5)  # percent
SAME_FLOPS: Final = 1.25  # runs of one budget differ by less: a last whole step, and 6 N D for the exact count
LEAST_CELLS: Final = 3
LEAST_BUDGETS: Final = 2


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
    best = _fit(points, _grid())
    surface = _surface(best)
    generator = np.random.default_rng(seed)
    draws: list[LossSurface] = []
    while len(draws) < num_draws:
        drawn = [points[index] for index in generator.integers(len(points), size=len(points))]
        if len({each.num_parameters for each in drawn}) > 1 and len({each.tokens for each in drawn}) > 1:
            draws.append(_surface(_fit(drawn, np.concatenate([best[None], _grid()[::37]]))))
    residual = float(np.sqrt(np.mean(_residuals(best[None], *_columns(points))[0] ** 2)))
    most = max(point.flops for point in points)
    return LawFit(surface=surface, draws=tuple(draws), residual=residual, most_flops=most)


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


def _grid() -> Values:
    """Return all starts: [S, 5] of log E, log A, log B, alpha, beta."""
    return np.array(list(product(*STARTS)), dtype=np.float64)


def _columns(points: Sequence[LawPoint]) -> tuple[Values, Values, Values]:
    """Return log N, log D and log loss: [P] each."""
    rows = np.log([(point.num_parameters, point.tokens, point.loss) for point in points])
    return rows[:, 0], rows[:, 1], rows[:, 2]


def _terms(starts: Values, log_n: Values, log_d: Values) -> tuple[Values, Values]:
    """Return the logarithm of the law's value, [S, P], and the share of each of its terms, [S, P, 3]."""
    log_e, log_a, log_b, alpha, beta = (starts[:, index, None] for index in range(NUM_PARAMETERS))
    terms = np.stack(np.broadcast_arrays(log_e + 0 * log_n, log_a - alpha * log_n, log_b - beta * log_d), axis=-1)
    most = terms.max(axis=-1, keepdims=True)
    total = np.log(np.exp(terms - most).sum(axis=-1)) + most[..., 0]
    return total, np.exp(terms - total[..., None])


def _residuals(starts: Values, log_n: Values, log_d: Values, log_loss: Values) -> Values:
    """Return the errors of the logarithm: [S, P]."""
    return _terms(starts, log_n, log_d)[0] - log_loss


def _objective(residuals: Values) -> Values:
    """Return the Huber loss of each start: [S, P] -> [S]."""
    size = np.abs(residuals)
    return np.where(size <= DELTA, size**2 / 2, DELTA * (size - DELTA / 2)).sum(axis=-1)


def _fit(points: Sequence[LawPoint], starts: Values) -> Values:
    """Return the best numbers from all starts: [5]."""
    columns = _columns(points)
    first, values = _descend(starts, columns, num_steps=FIRST_STEPS)
    kept = first[np.argsort(values)[:NUM_BEST]]
    last, values = _descend(kept, columns, num_steps=NUM_STEPS)
    return last[int(np.argmin(values))]


def _descend(starts: Values, columns: tuple[Values, Values, Values], *, num_steps: int) -> tuple[Values, Values]:
    """Take damped Gauss-Newton steps with Huber's weights from each start; return the ends and their losses."""
    log_n, log_d, log_loss = columns
    here, damping = starts.copy(), np.full(len(starts), 1e-2)
    value = _objective(_residuals(here, *columns))
    for _ in range(num_steps):
        total, shares = _terms(here, log_n, log_d)
        residuals = total - log_loss
        slopes = np.stack(
            [*np.moveaxis(shares, -1, 0), -shares[..., 1] * log_n, -shares[..., 2] * log_d], axis=-1
        )  # [S, P, 5]
        weights = np.minimum(1.0, DELTA / np.maximum(np.abs(residuals), 1e-300))
        weighted = slopes * weights[..., None]
        normal = np.einsum("spi,spj->sij", weighted, slopes)
        gradient = np.einsum("spi,sp->si", weighted, residuals)
        scale = np.einsum("sii->si", normal) + 1e-12
        normal[:, range(NUM_PARAMETERS), range(NUM_PARAMETERS)] += damping[:, None] * scale
        step = np.linalg.solve(normal, gradient[..., None])[..., 0]
        tried = here - np.clip(step, -2.0, 2.0)
        tried[:, 3:] = np.clip(tried[:, 3:], 1e-3, 5.0)
        new = _objective(_residuals(tried, *columns))
        is_better = new < value
        here, value = np.where(is_better[:, None], tried, here), np.where(is_better, new, value)
        damping = np.clip(np.where(is_better, damping / 3, damping * 4), 1e-9, 1e9)
    return here, value


def _surface(numbers: Values) -> LossSurface:
    log_e, log_a, log_b, alpha, beta = (float(number) for number in numbers)
    return LossSurface(
        irreducible=float(np.exp(log_e)),
        per_parameters=float(np.exp(log_a)),
        per_tokens=float(np.exp(log_b)),
        parameters_exponent=alpha,
        tokens_exponent=beta,
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
class PowerLaw:
    """N = factor * C^exponent."""

    factor: float
    exponent: float

    def num_parameters(self, flops: float) -> float:
        """Return the best size of an amount of compute."""
        return self.factor * flops**self.exponent


@dataclass(frozen=True, kw_only=True)
class IsoflopFit:
    """The minima of the budgets, the law through them (None: too few), and why the other budgets have none."""

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


def _law(minima: Sequence[IsoflopMinimum]) -> PowerLaw | None:
    if len(minima) < LEAST_BUDGETS:
        return None
    logs = np.log([(each.flops, each.num_parameters) for each in minima])
    exponent, constant = np.polyfit(logs[:, 0], logs[:, 1], 1)
    return PowerLaw(factor=float(np.exp(constant)), exponent=float(exponent))
