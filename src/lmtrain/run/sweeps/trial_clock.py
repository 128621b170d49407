"""A run under way by its folder: its seconds so far, and those of all of it by the pace of its first steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.listing import newest_points
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_log import furthest

LEAST_SECONDS: Final = 5.0  # of steps timed before their pace counts,
LEAST_SHARE: Final = 0.1  # or this share of the run's steps


@dataclass(frozen=True, kw_only=True)
class TrialTime:
    """Seconds of all attempts so far, and of the whole run after `steps` timed steps; None: not known yet."""

    spent_seconds: float
    whole_seconds: float | None = None
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialClock:
    """The clock of a run's folder since a start; `num_before` attempts of `seconds_before` were there already."""

    folder: Path
    num_before: int
    seconds_before: float

    def look(self) -> TrialTime:
        """Read the run's attempts, its newest points and its plan."""
        attempts = read_attempts(self.folder, is_running=True)
        if len(attempts) <= self.num_before:
            return TrialTime(spent_seconds=self.seconds_before)
        spent = sum(each.wall_seconds for each in attempts)
        horizon: Any = read_json(self.folder / "plan.json").get("horizon", {})
        if horizon.get("seconds"):  # a budget of time
            return TrialTime(spent_seconds=spent, whole_seconds=float(horizon["seconds"]))
        points = newest_points(self.folder / "metrics.jsonl")
        timed = [point for point in points if point.step > 0 and point.time >= attempts[-1].started_at]
        num_steps = int(horizon.get("steps", 0))
        if not timed or not num_steps:
            return TrialTime(spent_seconds=spent)
        last = furthest(timed)
        steps, seconds = last.step - timed[0].step, last.time - timed[0].time
        if steps < 1 or (seconds < LEAST_SECONDS and steps < LEAST_SHARE * num_steps):
            return TrialTime(spent_seconds=spent)
        left = max(0, num_steps - last.step)
        return TrialTime(spent_seconds=spent, whole_seconds=spent + left * seconds / steps, steps=steps)


def clock_of(folder: Path) -> TrialClock:
    """Return the clock of a run about to start."""
    attempts = read_attempts(folder)
    seconds = sum(each.wall_seconds for each in attempts)
    return TrialClock(folder=folder, num_before=len(attempts), seconds_before=seconds)
