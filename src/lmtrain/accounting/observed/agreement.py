"""Measure until two results agree: other work on a machine only ever slows one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

TOLERANCE: Final = 0.05  # of a rate, between two results on an idle machine
MOST_TRIES: Final = 5

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Tries(Generic[T]):
    """All results in order; `spread` is the last two's largest difference, as a share."""

    results: tuple[T, ...]
    spread: float

    @property
    def agree(self) -> bool:
        """Tell whether the last two do."""
        return self.spread <= TOLERANCE

    @property
    def words(self) -> str:
        """Return the number of tries and the difference of the last two."""
        found = f"{len(self.results)} tries, the last two {'within' if self.agree else 'differ by'} {self.spread:.1%}"
        return found if self.agree else f"the machine is busy: {found}"


def until_two_agree(measure: Callable[[], T], rates: Callable[[T], Mapping[str, float]]) -> Tries[T]:
    """Measure at least twice and at most five times; `rates` of two results are compared by name."""
    results, spread = [measure()], 1.0
    while len(results) < MOST_TRIES and spread > TOLERANCE:
        results.append(measure())
        spread = _spread(*map(rates, results[-2:]))
    return Tries(results=tuple(results), spread=spread)


def _spread(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    return max(abs(first[name] - second[name]) / max(first[name], second[name]) for name in first)
