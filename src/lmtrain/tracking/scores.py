"""Keep an evaluation's scores with their run: in its folder, its curves, and its run in MLflow."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.mlflow.sync import sync
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.status import settled_status

FOLDER = "evaluation"
SCORED_AT = "scored_at"  # seconds since 1970, beside each kept score
OF_WHAT = ("sha256", "data", "context_tokens", "tasks", "settings")  # of a score: what was scored, and how


def keep_scores(run: Path, *, step: int, tokens: int, scores: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Add scores of a checkpoint to its run.

    `scores` are objects with a `score` each, under their metrics' names; they join those kept for this step before,
    each with its time. One of the same name replaces that before it where both are of the same thing; where one of any
    step is of another thing, it has a number in its name. Returns the names where they differ from their metrics', and
    a line if MLflow could not be updated.
    """
    RunFolder(run).require_own_files()
    file, now = scores_file(run, step), time.time()
    file.parent.mkdir(exist_ok=True)
    kept: dict[str, Any] = read_json(file)
    every = [kept, *(read_json(each) for each in file.parent.glob("step_*.json") if each != file)]
    names = {name: _free_name(every, name, one) for name, one in scores.items()}
    write_json(file, {**kept, **{names[name]: {**one, SCORED_AT: now} for name, one in scores.items()}})
    log = RunLog(run)
    log.extend([Point(now, step, tokens, {names[name]: float(one["score"]) for name, one in scores.items()})])
    log.close()
    return {name: given for name, given in names.items() if given != name}, tell_mlflow(run)


def _free_name(every: Sequence[Mapping[str, Any]], name: str, score: Mapping[str, Any]) -> str:
    """Return a name that no kept score of another thing has at any step: those of one name are one curve."""
    names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    of_what = {key: score[key] for key in OF_WHAT if key in score}
    return next(
        one
        for one in names
        if all(kept.get(one, {}).get(key, value) == value for kept in every for key, value in of_what.items())
    )


def tell_mlflow(run: Path) -> str | None:
    """Send a run's new points and files; return a line where that failed. A run under way sends them itself."""
    status = settled_status(run)
    is_tracked = "mlflow" in RunFolder(run).read_identity()
    if not is_tracked or (status is not None and status.status == "RUNNING"):  # its own process sends them
        return None
    try:
        sync(run)
    except LMTRAIN_ERRORS as problem:
        return f"{run} has more than its run in MLflow: {redact_text(str(problem))}"
    return None


def scores_since(run: Path, began: float) -> dict[str, Any]:
    """Return the newest checkpoint's scores kept since a time: not those of another command before."""
    files = sorted((run / FOLDER).glob("*.json"))
    kept: dict[str, Any] = read_json(files[-1]) if files else {}
    return {name: one for name, one in kept.items() if one.get(SCORED_AT, 0) >= began}


def scores_file(run: Path, step: int) -> Path:
    """Return the file of a checkpoint's scores."""
    return run / FOLDER / f"step_{step:08d}.json"


def all_scores(run: Path) -> dict[int, dict[str, Any]]:
    """Return the kept scores of every checkpoint by its step, without all else in a strange file."""
    files = {path.stem.removeprefix("step_"): path for path in sorted((run / FOLDER).glob("step_*.json"))}
    kept: dict[int, dict[str, Any]] = {int(step): read_json(path) for step, path in files.items() if step.isdecimal()}
    return {step: {name: one for name, one in found.items() if _is_score(one)} for step, found in kept.items()}


def _is_score(one: Any) -> bool:
    if not isinstance(one, dict):
        return False
    values = cast("dict[str, Any]", one)
    numbers = [
        values.get("score"),
        *(values[key] for key in ("standard_error", "ended") if values.get(key) is not None),
    ]
    return all(isinstance(number, int | float) for number in numbers)
