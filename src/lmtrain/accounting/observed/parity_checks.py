"""A training on several ranks compared with one process: the comparisons, and the first difference."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Kind = Literal["tokens", "loss", "gradient", "gradient norm", "weight"]
# Of a step in the order of their making: a wrong one spoils those after it.
ORDER: Final[tuple[Kind, ...]] = ("tokens", "loss", "gradient", "gradient norm", "weight")
WEIGHTS_PER_GRADIENT: Final = 100.0  # optimizers divide gradients by their size, small ones and their rounding too
OF_ALL: Final = 0.01  # tensors with hardly a gradient, as a key's bias, hold little but rounding


@dataclass(frozen=True, kw_only=True)
class RankDifference:
    """One number or tensor of a step on the ranks compared with one process's.

    `largest` is the largest difference of an entry and `relative` its share of `scale`: the number itself, the tensor's
    largest gradient, the largest update of its weights. `ranks` hold entries beyond the tolerance.
    """

    step: int
    kind: Kind
    name: str = ""
    largest: float
    scale: float
    ranks: Sequence[int] = ()

    @property
    def relative(self) -> float:
        """Return the difference's share of the scale; 0 of nothing is 0."""
        return 0.0 if self.largest == 0 else self.largest / self.scale if self.scale else math.inf


@dataclass(frozen=True, kw_only=True)
class Parity:
    """A comparison's findings, step by step; `changed` names its differences from the asked training.

    `failure` says why the ranks ended before their last step, "" where they reached it.
    """

    strategy: str
    num_ranks: int
    num_steps: int
    tolerance: float
    differences: tuple[RankDifference, ...]
    changed: tuple[str, ...] = ()
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """Return whether the ranks reached the last step without a difference beyond the tolerance."""
        return self.first is None and not self.failure

    @property
    def first(self) -> RankDifference | None:
        """Return the first difference beyond the tolerance, None where both are the same training."""
        return next((each for each in self.differences if each.ranks), None)

    def worst(self, step: int, kind: Kind) -> RankDifference | None:
        """Return the relatively largest difference of a kind in a step; a NaN is the largest."""
        found = [each for each in self.differences if (each.step, each.kind) == (step, kind)]
        return max(found, key=lambda each: math.inf if math.isnan(each.relative) else each.relative, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the worst of each kind and step, and the first beyond the tolerance."""
        steps = range(1, self.num_steps + 1)
        worst = [found for step in steps for kind in ORDER if (found := self.worst(step, kind))]
        return {
            **{name: value for name, value in asdict(self).items() if name != "differences"},
            "is_equal": self.is_equal,
            "num_compared": len(self.differences),
            "first": _plain(self.first) if self.first else None,
            "worst": [_plain(each) for each in worst],
        }


def in_order(differences: Iterable[RankDifference]) -> tuple[RankDifference, ...]:
    """Sort by step, then by the order of making; within one, as they were."""
    return tuple(sorted(differences, key=lambda each: (each.step, ORDER.index(each.kind))))


def _plain(difference: RankDifference) -> dict[str, Any]:
    numbers = {name: getattr(difference, name) for name in ("largest", "scale", "relative")}
    return {**asdict(difference), **{name: one if math.isfinite(one) else str(one) for name, one in numbers.items()}}
