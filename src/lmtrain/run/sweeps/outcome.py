"""The end of one run of a sweep, read from its folder: its score, or the kind and message of its failure; its time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, Diverged, OutOfMemory, suggest
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.facts import newest_job, split_measured
from lmtrain.report.runs.held_out import held_out_text
from lmtrain.report.runs.listing import newest_points
from lmtrain.search.halving import step_of_part
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, furthest, logged_points
from lmtrain.tracking.status import CLEAN_STOPS
from lmtrain.tracking.sweep_file import HeldOutText, TrialState

STATES_OF_ERRORS: Final[dict[str, TrialState]] = {Diverged.__name__: "diverged", OutOfMemory.__name__: "out_of_memory"}
KILLED: Final = 137
MIN_SECONDS: Final = 5.0  # of timed steps before their pace counts,
MIN_SHARE: Final = 0.1  # or this share of the run's steps


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run's end; `score` is the last value of the sweep's metric, on `held_out`; None if there is none."""

    state: TrialState
    exit_code: int
    score: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    held_out: HeldOutText | None = None


def outcome_of(folder: Path, exit_code: int, *, metric: str, refusal: str | None = None) -> Outcome:
    """Read a run's end; `refusal` is the message of its process if it has no folder.

    Raises:
        ConfigurationError: It succeeded, but has no such metric.
    """
    points = logged_points(folder)
    seconds = seconds_of(folder)
    values = [point.metrics[metric] for point in points if metric in point.metrics]
    if exit_code == 0 or exit_code in CLEAN_STOPS:
        if exit_code == 0 and not values:
            raise ConfigurationError(_missing_metric(metric, points, folder))
        score = values[-1] if values and math.isfinite(values[-1]) else None
        state: TrialState = "stopped" if exit_code else "finished" if score is not None else "diverged"
        reason = f"its {metric} is {values[-1]}" if state == "diverged" else None
        text = None if score is None else held_out_text(folder, points, split=split_measured(newest_job(folder)))
        return Outcome(state=state, exit_code=exit_code, score=score, seconds=seconds, reason=reason, held_out=text)
    failure = _failure(folder)
    killed = "killed (SIGKILL): by another process, or because the machine was out of memory"
    return Outcome(
        state=STATES_OF_ERRORS.get(str(failure.get("kind")), "failed"),
        exit_code=exit_code,
        seconds=seconds,
        reason=str(failure.get("message") or refusal or (killed if exit_code == KILLED else f"exit code {exit_code}")),
    )


def has_trained(folder: Path, part: tuple[int, int] | None) -> bool:
    """Return whether a run has reached the end of k of n parts of its steps, where it pauses; False for no part."""
    horizon: Any = read_json(folder / "plan.json").get("horizon", {})
    pause = step_of_part(part, num_steps=int(horizon.get("steps", 0)))
    return pause is not None and furthest(logged_points(folder)).step >= pause


def seconds_of(folder: Path) -> float:
    """Add up the time of all attempts of a run."""
    return sum(attempt.wall_seconds for attempt in read_attempts(folder)) if folder.exists() else 0.0


def _failure(folder: Path) -> dict[str, object]:
    """Return the failure of the newest attempt's first failed rank, empty if none is recorded."""
    attempts = RunFolder(folder).attempts()
    files = sorted(attempts[-1].glob("rank*.error.json")) if attempts else []
    found = [read_json(file) for file in files]
    return next((each for each in found if each.get("kind") in STATES_OF_ERRORS), found[0] if found else {})


def _missing_metric(metric: str, points: Iterable[Point], folder: Path) -> str:
    known = sorted({key for point in points for key in point.metrics if key.startswith(("validation/", "train/"))})
    return (
        f"sweep.metric={metric} is in no point of {folder.name}; it has {', '.join(known) or 'none'}."
        f"{suggest(metric, known)}"
    )


@dataclass(frozen=True, kw_only=True)
class TrialTime:
    """Seconds of all attempts so far, and of the whole run by the pace of `steps` timed steps; None: not known yet."""

    spent_seconds: float
    whole_seconds: float | None = None
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class TrialClock:
    """The clock of a running run's folder; `num_before` attempts of `seconds_before` existed before its start."""

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
        if steps < 1 or (seconds < MIN_SECONDS and steps < MIN_SHARE * num_steps):
            return TrialTime(spent_seconds=spent)
        left = max(0, num_steps - last.step)
        return TrialTime(spent_seconds=spent, whole_seconds=spent + left * seconds / steps, steps=steps)


def clock_of(folder: Path) -> TrialClock:
    """Return the clock of a run about to start."""
    attempts = read_attempts(folder)
    seconds = sum(each.wall_seconds for each in attempts)
    return TrialClock(folder=folder, num_before=len(attempts), seconds_before=seconds)
