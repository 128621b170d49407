"""One run's folder for a comparison: its settings, its curve, its held-out text, its end."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.observed.time_accounts import step_seconds
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.runs.attempts import OwnSteps, read_attempts
from lmtrain.report.runs.comparable_scores import comparable, left_out_words
from lmtrain.report.runs.facts import read_run
from lmtrain.report.runs.held_out_text import held_out_text
from lmtrain.report.runs.shown_state import PRUNED, shown_state
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.flat_config import flatten
from lmtrain.tracking.held_out_text import HeldOutText
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.tracking.run_log import Point, logged_points
from lmtrain.tracking.settled_status import settled_status

Curve = Sequence[tuple[float, float]]  # (tokens trained on, value)
MEASURED: Final = ("/bits_per_byte", "/loss")  # lower is better
FINISHED: Final = "FINISHED"
NUM_MEANS: Final = 40  # a training curve has a value a step, too noisy to read one of
# Where, how fast and how often a run is executed and saved: no effect on learning.
EXECUTION: Final = (
    "run.", "resume", "logger.", "trainer.", "data.num_workers", "data.cache", "data.folder.root", "engine.",
    "callbacks.checkpoint.", "callbacks.progress.", "callbacks.text_samples.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run: `settings` decide its learning, without the seed; `words` are those typed.

    `seconds` are those of its own steps until so many tokens; empty where it has no accounts. Of a fork's tokens some
    are of the run it left.
    """

    folder: Path
    name: str
    status: str
    exit_code: int | None
    step: int
    num_steps: int
    seed: str
    settings: dict[str, str]
    words: tuple[str, ...]
    held_out: HeldOutText
    curve: Curve
    flops_per_token: float
    tokens_per_second: float | None
    seconds: Curve = ()
    own: OwnSteps = field(default_factory=OwnSteps)
    left_out: str | None = None  # of its scores

    @property
    def final(self) -> float:
        """Return the last value of its curve; the curve must not be empty."""
        return self.curve[-1][1]

    @property
    def tokens(self) -> float:
        """Return its training tokens at the last measurement."""
        return self.curve[-1][0]

    def seconds_at(self, tokens: float) -> float | None:
        """Return the seconds of its steps until so many tokens, on a straight line between two readings."""
        if not self.seconds:
            return None
        place = min(bisect_left(self.seconds, (tokens, -math.inf)), len(self.seconds) - 1)
        (left, low), (right, high) = self.seconds[max(0, place - 1)], self.seconds[place]
        return high if right <= left else low + (high - low) * min(1.0, max(0.0, (tokens - left) / (right - left)))

    @property
    def trouble(self) -> str | None:
        """Say why the run's last value is not the result of its settings; None where it is."""
        done = f"step {self.step:,} of {self.num_steps:,}"
        if self.status != FINISHED:
            code = "" if self.exit_code is None else f", exit code {self.exit_code}"
            return f"{self.status.lower()}{code} at {done}"
        if not self.curve:
            return f"no score in {self.folder.name}/metrics.jsonl"
        return None if math.isfinite(self.final) else f"diverged: its last value is {self.final}"


def settings_of(config: dict[str, Any]) -> dict[str, str]:
    """Return a config's settings with an effect on results, by their keys; the seed is none of them."""
    return {key: value for key, value in flatten(config).items() if key != "seed" and not key.startswith(EXECUTION)}


def changed_settings(folder: Path, asked: dict[str, Any]) -> str:
    """Name a run's settings unlike those `asked` for; none where they are the same, or the run's are gone."""
    job = _accepted_job(folder)
    if not isinstance(job.get("config"), dict):
        return ""
    there, now = settings_of(job["config"]), settings_of(asked)
    return "; ".join(f"{key}={there.get(key)}, not {value}" for key, value in now.items() if there.get(key) != value)


def read_compared_run(folder: Path, *, metric: str = BITS_PER_BYTE) -> ComparedRun:
    """Read a run's folder.

    Raises:
        ConfigurationError: The run has no such metric.
        DataError: The run's settings are gone.
    """
    status = settled_status(folder)
    job = _accepted_job(folder)
    if status is None or not isinstance(job.get("config"), dict):
        raise DataError(f"{folder} has no status or no settings (attempts/<n>/job.json); leave it out.")
    points = logged_points(folder)
    flat = flatten(job["config"])
    plan, facts = read_json(folder / "plan.json"), read_run(folder)
    return ComparedRun(
        folder=folder,
        name=stored_name(folder),
        status=(shown := shown_state(folder, status)),
        exit_code=None if shown == PRUNED else status.exit_code,
        step=max((point.step for point in points), default=0),
        num_steps=_number(plan, "horizon", "steps"),
        seed=flat.get("seed", ""),
        settings=settings_of(job["config"]),
        words=tuple(word for word in job.get("overrides", ()) if _tells(word)),
        held_out=held_out_text(folder, points, split=_split(flat)),
        curve=_curve(comparable(points), metric, name=folder.name, is_over=shown == FINISHED),
        left_out=left_out_words(points),
        flops_per_token=_number(plan, "flops_per_token", "palm"),
        tokens_per_second=facts.tokens_per_second,
        seconds=_seconds(folder, tokens_per_step=facts.own.tokens_per_step),
        own=facts.own,
    )


def _accepted_job(folder: Path) -> dict[str, Any]:
    attempt = RunFolder(folder).accepted_attempt()
    return read_json(attempt / "job.json") if attempt else {}


def _seconds(folder: Path, *, tokens_per_step: int) -> Curve:
    found = step_seconds(read_attempts(folder)) if tokens_per_step else []
    return [(float(step * tokens_per_step), spent) for step, spent in found]


def _tells(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key not in ("seed", "logger", "experiment") and not f"{key}.".startswith(EXECUTION)


def _number(plan: dict[str, Any], part: str, key: str) -> Any:
    return plan.get(part, {}).get(key, 0)


def is_of_training(metric: str) -> bool:
    """Tell whether a metric is of no held-out text."""
    return metric.startswith("train/")


def _split(flat: dict[str, str]) -> str:
    return flat.get("callbacks.validation.split", "validation")


def _curve(points: Sequence[Point], metric: str, *, name: str, is_over: bool) -> Curve:
    """Return a metric over tokens; nothing of a run that has not measured it yet."""
    known = sorted({key for point in points for key in point.metrics if key.endswith(MEASURED)})
    if not metric.endswith(MEASURED):
        raise ConfigurationError(
            f"--metric {metric} is none that is better where it is lower; it must end with {' or '.join(MEASURED)}."
        )
    curve = [(float(point.tokens), point.metrics[metric]) for point in points if metric in point.metrics]
    if points and not curve and is_over:
        has = f"it has {', '.join(known)}, of which --metric chooses one" if known else "it has no measurement"
        raise ConfigurationError(f"{name} has no {metric}; {has}.{suggest(metric, known)}")
    return _means(curve) if is_of_training(metric) else curve


def _means(curve: Curve) -> Curve:
    """Return the means of as many consecutive parts, each where its last point is."""
    if len(curve) <= NUM_MEANS:
        return curve
    edges = [round(index * len(curve) / NUM_MEANS) for index in range(NUM_MEANS + 1)]
    parts = [curve[start:end] for start, end in pairwise(edges)]
    return [(part[-1][0], statistics.fmean(value for _, value in part)) for part in parts]
