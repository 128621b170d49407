"""A learning-rate range test judged: where the smoothed loss falls fastest, is lowest, and breaks away.

The steepest descent over the logarithm of the rate is the suggestion of https://arxiv.org/abs/1506.01186 as
fast.ai and Lightning read it; here it has to be a fall above the noise of the losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from lmtrain.accounting.quantities import format_count

FADING: Final = 0.9  # of the mean, a step
LEAST_POINTS: Final = 20
FIRST_SHARE: Final = 0.1  # of the points: too early for a slope, and the level of the start
LEAST_FALL: Final = 3.0  # deviations of the losses about their mean


@dataclass(frozen=True, kw_only=True)
class LrRange:
    """The rates of a test as shares of the config's; `steepest` None where the loss never fell, with `problem`.

    `smoothed` are shares and smoothed losses, nats per token; `broke` is where the test ended early, None where it did
    not.
    """

    smoothed: tuple[tuple[float, float], ...]
    start: float
    noise: float
    steepest: float | None = None
    lowest: float | None = None
    broke: float | None = None
    problem: str | None = None


def judge(points: Sequence[tuple[float, float]], *, num_asked: int) -> LrRange:
    """Judge shares of the learning rate and their losses, in the order of their steps."""
    finite = [point for point in points if math.isfinite(point[1])]
    broke = points[-1][0] if len(finite) < num_asked and points else None
    curve = smooth(finite)
    first = max(2, round(FIRST_SHARE * len(curve)))
    start = sum(loss for _, loss in finite[:first]) / first if len(finite) >= first else math.nan
    noise = _noise(finite, curve)
    found = LrRange(smoothed=tuple(curve), start=start, noise=noise, broke=broke)
    if len(curve) < LEAST_POINTS:
        steps = format_count(len(curve), "step")
        return replace(found, problem=f"the loss broke after {steps}, too early for a curve; set a lower --lowest")
    bottom = min(range(len(curve)), key=lambda index: curve[index][1])
    if start - curve[bottom][1] < LEAST_FALL * noise or bottom < first:
        return replace(found, problem="the loss never fell by more than its noise; set more --steps or --highest")
    slopes = [
        ((after - before) / math.log(later / earlier), earlier)
        for (earlier, before), (later, after) in pairwise(curve[first : bottom + 1])
    ]
    steepest = min(slopes)[1] if slopes else curve[bottom][0]
    return replace(found, steepest=steepest, lowest=curve[bottom][0])


def smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points with the fading mean of their losses so far."""
    mean, weight, found = 0.0, 0.0, list[tuple[float, float]]()
    for share, loss in points:
        mean = FADING * mean + (1 - FADING) * loss
        weight = FADING * weight + (1 - FADING)
        found.append((share, mean / weight))
    return found


def _noise(points: Sequence[tuple[float, float]], curve: Sequence[tuple[float, float]]) -> float:
    """Return the deviation of losses from one to the next in the first half, where the mean hardly moves."""
    half = points[: max(3, len(points) // 2)]
    steps = [after - before for (_, before), (_, after) in pairwise(half)]
    if not steps or not curve:
        return 0.0
    center = sum(steps) / len(steps)
    spread = math.sqrt(sum((step - center) ** 2 for step in steps) / len(steps)) / math.sqrt(2)
    return spread * math.sqrt((1 - FADING) / (1 + FADING))  # of the fading mean
