"""The end of one run of a sweep, read from its folder: its score, or the kind and the words of its failure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, Diverged, OutOfMemory, suggest
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.facts import newest_job, split_measured
from lmtrain.report.runs.held_out import held_out_text
from lmtrain.search.halving import step_of_part
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, furthest, logged_points
from lmtrain.tracking.status import CLEAN_STOPS
from lmtrain.tracking.sweep_file import HeldOutText, TrialState

OF_KINDS: Final[dict[str, TrialState]] = {Diverged.__name__: "diverged", OutOfMemory.__name__: "out_of_memory"}
KILLED: Final = 137


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run's end; `score` is the last value of the sweep's metric, on `held_out`; None where there is none."""

    state: TrialState
    exit_code: int
    score: float | None = None
    seconds: float = 0.0
    reason: str | None = None
    held_out: HeldOutText | None = None


def outcome_of(folder: Path, exit_code: int, *, metric: str, refusal: str | None = None) -> Outcome:
    """Read a run's end; `refusal` are its process's last words where it had no folder.

    Raises:
        ConfigurationError: It went well, and has no such metric.
    """
    points = logged_points(folder)
    seconds = seconds_of(folder)
    values = [point.metrics[metric] for point in points if metric in point.metrics]
    if exit_code == 0 or exit_code in CLEAN_STOPS:
        if exit_code == 0 and not values:
            raise ConfigurationError(_no_metric(metric, points, folder))
        score = values[-1] if values and math.isfinite(values[-1]) else None
        state: TrialState = "stopped" if exit_code else "finished" if score is not None else "diverged"
        reason = f"its {metric} is {values[-1]}" if state == "diverged" else None
        text = None if score is None else held_out_text(folder, points, split=split_measured(newest_job(folder)))
        return Outcome(state=state, exit_code=exit_code, score=score, seconds=seconds, reason=reason, held_out=text)
    failure = _failure(folder)
    state = OF_KINDS.get(str(failure.get("kind")), "failed")
    reason = str(failure.get("message") or refusal or _in_words(exit_code))
    return Outcome(state=state, exit_code=exit_code, seconds=seconds, reason=reason)


def has_trained(folder: Path, part: tuple[int, int] | None) -> bool:
    """Tell whether a run has come to the end of k of n parts of its steps, where it pauses; False for no part."""
    horizon: Any = read_json(folder / "plan.json").get("horizon", {})
    pause = step_of_part(part, num_steps=int(horizon.get("steps", 0)))
    return pause is not None and furthest(logged_points(folder)).step >= pause


def seconds_of(folder: Path) -> float:
    """Add up the time of all attempts of a run."""
    return sum(attempt.wall_seconds for attempt in read_attempts(folder)) if folder.exists() else 0.0


def _failure(folder: Path) -> dict[str, object]:
    """Return the failure of the newest attempt's first failed rank, empty where none is recorded."""
    attempts = RunFolder(folder).attempts()
    files = sorted(attempts[-1].glob("rank*.error.json")) if attempts else []
    found = [read_json(file) for file in files]
    return next((each for each in found if each.get("kind") in OF_KINDS), found[0] if found else {})


def _in_words(exit_code: int) -> str:
    if exit_code == KILLED:
        return "killed (SIGKILL): another process did, or the machine was out of memory"
    return f"exit code {exit_code}"


def _no_metric(metric: str, points: Iterable[Point], folder: Path) -> str:
    known = sorted({key for point in points for key in point.metrics if key.startswith(("validation/", "train/"))})
    return (
        f"sweep.metric={metric} is in no point of {folder.name}; it has {', '.join(known) or 'none'}."
        f"{suggest(metric, known)}"
    )
