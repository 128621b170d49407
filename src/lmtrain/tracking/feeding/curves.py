"""The curves of a run's points, for trackers with plots over steps alone: a few come a second time, over tokens."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS, VALIDATION_LOSS
from lmtrain.tracking.feeding.held_out_curves import plain_name
from lmtrain.tracking.run_log import Point

MIRRORED_BY_TOKENS: Final = frozenset({TRAIN_LOSS, VALIDATION_LOSS, BITS_PER_BYTE})


class CurvePoint(NamedTuple):
    """A value of one curve; `step` is a number of tokens under `by_tokens/`, `time` in unix seconds."""

    key: str
    value: float
    step: int
    time: float


def curve_points(point: Point) -> Iterator[CurvePoint]:
    """Yield the values of a point, each with the name of its curve."""
    for key, value in point.metrics.items():
        yield CurvePoint(key, value, point.step, point.time)
        if plain_name(key) in MIRRORED_BY_TOKENS:
            yield CurvePoint(f"by_tokens/{key}", value, point.tokens, point.time)
