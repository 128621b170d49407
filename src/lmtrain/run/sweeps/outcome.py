"""The end of one run of a sweep, read from its folder: its score, or the kind and message of its failure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, Diverged, OutOfMemory, suggest
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.facts import newest_job, split_measured
from lmtrain.report.runs.held_out import held_out_text
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, logged_points
from lmtrain.tracking.status import CLEAN_STOPS
from lmtrain.tracking.sweep_file import HeldOutText, TrialState

STATES_OF_ERRORS: Final[dict[str, TrialState]] = {Diverged.__name__: "diverged", OutOfMemory.__name__: "out_of_memory"}
KILLED: Final = 137


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run's end; `score` is the last value of the sweep's metric, on `held_out`; None if there is none."""

    state: TrialState
    exit_code: int
    score: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    held_out: HeldOutText | None = None


def outcome_of(
    folder: Path, exit_code: int, *, metric: str, refusal: str | None = None, needs_score: bool = True
) -> Outcome:
    """Read a run's end; `refusal` is the message of its process if it has no folder.

    Raises:
        ConfigurationError: It succeeded and needs a score, but has no such metric.
    """
    points = logged_points(folder)
    seconds = seconds_of(folder)
    values = [point.metrics[metric] for point in points if metric in point.metrics]
    if exit_code == 0 or exit_code in CLEAN_STOPS:
        if exit_code == 0 and not values:
            if not needs_score:
                return Outcome(state="finished", exit_code=exit_code, seconds=seconds)
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
