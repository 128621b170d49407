"""The clock of a run over its attempts: it stands still between two of them."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from lmtrain.accounting.observed.time_accounts import Attempt
from lmtrain.tracking.run_log import Point


def on_the_clock(points: Sequence[Point], attempts: Sequence[Attempt], *, began: float) -> list[float]:
    """Return the seconds of all attempts until each point, without the time between two attempts.

    A point is of the last attempt that went on before its step: a resume drops the points after it. Without accounts
    they count from `began`, in unix seconds.
    """
    begun = sorted((each.first_step, number) for number, each in enumerate(attempts) if each.first_step is not None)
    first_steps = [step for step, _ in begun]
    newest = [*accumulate((number for _, number in begun), max)]  # of those that went on before a step
    earlier = [*accumulate((each.wall_seconds for each in attempts), initial=0.0)]
    found: list[float] = []
    for point in points:
        place = bisect_left(first_steps, point.step)
        number = newest[place - 1] if place else None
        before, since = (0.0, began) if number is None else (earlier[number], attempts[number].started_at)
        found.append(max(0.0, before + point.time - since))
    return found
