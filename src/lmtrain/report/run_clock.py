"""The clock of a run over its attempts: it stands still between two of them."""

from collections.abc import Sequence

from lmtrain.accounting.observed.time_accounts import Attempt
from lmtrain.tracking.run_log import Point


def on_the_clock(points: Sequence[Point], attempts: Sequence[Attempt], *, began: float) -> list[float]:
    """Return the seconds of all attempts until each point, without the time between two attempts.

    A point is of the last attempt that went on before its step: a resume drops the points after it. Without accounts
    they count from `began`, in unix seconds.
    """
    found: list[float] = []
    for point in points:
        own = [n for n, each in enumerate(attempts) if each.first_step is not None and each.first_step < point.step]
        earlier = sum(each.wall_seconds for each in attempts[: own[-1]]) if own else 0.0
        found.append(max(0.0, earlier + point.time - (attempts[own[-1]].started_at if own else began)))
    return found
