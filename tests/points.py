"""Points of a run's curves, for tests of their readers; a run's own points come from its context."""

from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.stopwatch import unix_seconds


def append_point(log: RunLog, step: int, tokens: int, metrics: dict[str, float], *, time: float | None = None) -> None:
    """Add one point; time None means now."""
    log.extend([Point(unix_seconds() if time is None else time, step, tokens, metrics)])
