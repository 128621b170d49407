"""The spread of repeated runs, and the difference of two choices with its noise.

Choices are compared seed by seed (Student's paired interval): a seed gives both the same data in the same order, so
much of the noise cancels. With too few shared seeds the noise is unknown.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and standard deviation (over n - 1) of values; a single value has no deviation."""

    num: int
    mean: float
    standard_deviation: float | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two means and half the width of its 95% interval; None if the noise is not known."""

    mean: float
    plus_minus: float | None
    is_paired: bool

    @property
    def is_noise(self) -> bool | None:
        """Report whether zero lies within the interval."""
        return None if self.plus_minus is None else abs(self.mean) <= self.plus_minus

    def to_json(self) -> dict[str, Any]:
        """Return it as plain numbers."""
        return {**asdict(self), "is_noise": self.is_noise}


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and deviation of one value or more."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(num=len(values), mean=statistics.fmean(values), standard_deviation=deviation)


def difference(of: Mapping[str, float], against: Mapping[str, float]) -> Difference:
    """Return how much larger one choice is than another, both by seed; over the shared seeds if there are enough."""
    shared = of.keys() & against.keys()
    if len(shared) > 1 or (shared and 1 in (len(of), len(against))):
        return _paired([of[seed] - against[seed] for seed in shared])
    mean = statistics.fmean(of.values()) - statistics.fmean(against.values())
    return Difference(mean=mean, plus_minus=None, is_paired=False)


def _paired(differences: Sequence[float]) -> Difference:
    found = spread(differences)
    if found.standard_deviation is None:
        return Difference(mean=found.mean, plus_minus=None, is_paired=True)
    from scipy.special import stdtrit  # a quarter of a second, of comparisons with seeds alone

    quantile = float(stdtrit(found.num - 1, (1 + CONFIDENCE) / 2))  # of Student's distribution, two-sided
    error = found.standard_deviation / math.sqrt(found.num)
    return Difference(mean=found.mean, plus_minus=quantile * error, is_paired=True)


def difference_words(found: Difference) -> str:
    """Write a difference with its noise."""
    if found.plus_minus is None:
        return f"{found.mean:+.4f}, noise unknown"
    return f"{found.mean:+.4f} ± {found.plus_minus:.4f}{' (noise)' if found.is_noise else ''}"


def lead_words(best: str, of: Mapping[str, float], other: str, against: Mapping[str, float]) -> str:
    """Write the lead of the best over another, both scored by seed, and whether it is noise; lower is better."""
    found = difference(against, of)  # over shared seeds, which may rank the two the other way round
    if not found.mean:
        return f"{best} and {other} have the same score"
    noise = "" if found.plus_minus is None else f" ± {found.plus_minus:.4f}"
    verdict = {None: "noise unknown", True: "within noise", False: "more than noise"}[found.is_noise]
    return f"{best} is {abs(found.mean):.4f}{noise} {'better' if found.mean > 0 else 'worse'} than {other}: {verdict}"
