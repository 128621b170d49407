"""At most 2,000 points of each curve on a tracking server, whose pages stall beyond (mlflow/mlflow/issues/5779).

A curve is divided from its start to the run's planned end into as many parts as may be sent, and the first point of
each is. metrics.jsonl keeps all of them. The decision is a pure function of the point before, so that a failed call can
be repeated.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST_POINTS: Final = 2000
FOR_ENDS: Final = 20  # of them: an attempt's last point is sent too
BY_TOKENS: Final = "by_tokens/"
BY_THE_CLOCK: Final = "system/"  # their steps count the readings of a node: nothing is planned


@dataclass(frozen=True)
class _Parts:
    origin: float
    end: float
    width: float

    def part(self, step: float) -> int:
        return math.floor((step - self.origin) / self.width) if self.width else math.floor(step)


class Thinning:
    """The choice of points to send; `horizon` is plan.json's, `count` asks the store for a curve's points."""

    def __init__(self, horizon: Mapping[str, Any], *, count: Callable[[str], int]) -> None:
        self._steps = _amount(horizon.get("steps"))
        self._tokens = _amount(horizon.get("tokens"))
        self._count = count
        self._parts: dict[str, _Parts] = {}

    def keeps(self, key: str, step: int, *, before: int) -> bool:
        """Tell whether a point is sent, `before` being the step of the curve's newest point sent, -1 for none."""
        parts = self._parts.get(key)
        if parts is None or step > parts.end:
            parts = self._parts[key] = self._divide(key, before=before, step=step)
        return before < 0 or parts.part(step) > parts.part(before)

    def _divide(self, key: str, *, before: int, step: int) -> _Parts:
        """Divide the curve from its newest point to its planned end, or to twice its length where none is planned."""
        planned = self._tokens if key.startswith(BY_TOKENS) else self._steps
        planned = None if key.startswith(BY_THE_CLOCK) else planned
        most = MOST_POINTS - FOR_ENDS
        is_short = self._steps is not None and self._steps <= most and planned is not None and step <= planned
        if is_short or (planned is None and key.startswith(BY_TOKENS)):
            return _Parts(0.0, planned or float("inf"), 0.0)  # a point a step: never too many
        origin = float(max(before, 0))
        left = max(0, most - (self._count(key) if before >= 0 else 0))
        if planned is None or step > planned:
            left = left * 2 // 3
            planned = max(2.0 * step, origin + left)
        return _Parts(origin, planned, (planned - origin) / left if left else planned + 1.0)


def _amount(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
