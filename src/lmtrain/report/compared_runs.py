"""Runs for a comparison: their settings, curves and ends; and choices, the runs of one config that differ by seed."""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.observed.time_accounts import step_seconds
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.runs.attempts import OwnSteps
from lmtrain.report.runs.facts import PRUNED, RunRecord, newest_job, trial_of
from lmtrain.report.runs.held_out import comparable, held_out_text
from lmtrain.report.spread import Spread, spread
from lmtrain.tracking.parameters import flatten
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.sweep_file import HeldOutText

Curve = Sequence[tuple[float, float]]  # (tokens trained on, value)
MEASURED: Final = ("/bits_per_byte", "/loss")  # lower is better
FINISHED: Final = "FINISHED"
NUM_MEANS: Final = 40  # a training curve has a value per step, which is noisy: it is averaged to this many points
MAX_WORDS: Final = 3  # of a label
# Settings of where, how fast and how often a run is executed and saved do not change what it learns.
EXECUTION: Final = (
    "run.", "resume", "logger.", "trainer.", "data.num_workers", "data.cache", "data.folder.root", "engine.",
    "callbacks.checkpoint.", "callbacks.progress.", "callbacks.text_samples.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run: `settings` decide what it learns, without the seed; `words` are the overrides typed for it.

    `seconds` are those of its own steps until each number of tokens; empty without accounts.
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

    @property
    def final(self) -> float:
        """Return the last value of its curve, which must not be empty."""
        return self.curve[-1][1]

    @property
    def tokens(self) -> float:
        """Return its training tokens at the last measurement."""
        return self.curve[-1][0]

    def seconds_at(self, tokens: float) -> float | None:
        """Return the seconds of its steps until these tokens, on a straight line between two readings."""
        return between(self.seconds, tokens) if self.seconds else None

    @property
    def trouble(self) -> str | None:
        """Say why the run's last value is not the result of its settings; None if it is."""
        if self.status != FINISHED:
            code = "" if self.exit_code is None else f", exit code {self.exit_code}"
            return f"{self.status.lower()}{code} at step {self.step:,} of {self.num_steps:,}"
        if not self.curve:
            return f"no score in {self.folder.name}/metrics.jsonl"
        return None if math.isfinite(self.final) else f"diverged: its last value is {self.final}"


def between(curve: Curve, place: float) -> float:
    """Return a rising curve's value at a place, on a straight line between its points; the nearest end's outside."""
    index = min(bisect_left(curve, (place, -math.inf)), len(curve) - 1)
    (left, low), (right, high) = curve[max(0, index - 1)], curve[index]
    return high if right <= left else low + (high - low) * min(1.0, max(0.0, (place - left) / (right - left)))


def settings_of(config: dict[str, Any]) -> dict[str, str]:
    """Return a config's settings that change results, by key, without the seed."""
    return {key: value for key, value in flatten(config).items() if key != "seed" and not key.startswith(EXECUTION)}


def changed_settings(folder: Path, asked: dict[str, Any]) -> str:
    """Name a run's settings that differ from those `asked` for; nothing if none do, or the run's are gone."""
    there, now = settings_of(newest_job(folder).get("config", {})), settings_of(asked)
    return "; ".join(
        f"{key}={there.get(key)}, not {value}" for key, value in now.items() if there and there.get(key) != value
    )


def read_compared_run(folder: Path, *, metric: str = BITS_PER_BYTE) -> ComparedRun:
    """Read a run's folder.

    Raises:
        ConfigurationError: The run has no such metric.
        DataError: The run's settings are gone.
    """
    record = RunRecord(folder)
    if record.status is None or not record.job.get("config"):
        raise DataError(f"{folder} has no status or no settings (attempts/<n>/job.json); leave it out.")
    flat, shown = flatten(record.job["config"]), record.shown_status
    return ComparedRun(
        folder=folder,
        name=record.name,
        status=shown,
        exit_code=None if shown == PRUNED else record.status.exit_code,
        step=max((point.step for point in record.points), default=0),
        num_steps=record.plan.get("horizon", {}).get("steps", 0),
        seed=flat.get("seed", ""),
        settings=settings_of(record.job["config"]),
        words=tuple(word for word in record.overrides if _is_of_learning(word)),
        held_out=held_out_text(folder, record.points, split=flat.get("callbacks.validation.split", "validation")),
        curve=_curve(comparable(record.points), metric, name=folder.name, is_over=shown == FINISHED),
        flops_per_token=record.plan.get("flops_per_token", {}).get("palm", 0),
        tokens_per_second=record.tokens_per_second,
        seconds=[(float(step * record.own.tokens_per_step), spent) for step, spent in step_seconds(record.attempts)],
        own=record.own,
    )


def _is_of_learning(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key not in ("seed", "logger", "experiment") and not f"{key}.".startswith(EXECUTION)


def is_of_training(metric: str) -> bool:
    """Report whether a metric is measured on the training text."""
    return metric.startswith("train/")


def _curve(points: Sequence[Point], metric: str, *, name: str, is_over: bool) -> Curve:
    """Return a metric over tokens; empty if the run has not measured it yet."""
    if not metric.endswith(MEASURED):
        raise ConfigurationError(f"--metric: must end with {' or '.join(MEASURED)} (lower is better), got {metric}.")
    curve = [(float(point.tokens), point.metrics[metric]) for point in points if metric in point.metrics]
    if points and not curve and is_over:
        known = sorted({key for point in points for key in point.metrics if key.endswith(MEASURED)})
        has = f"it has {', '.join(known)}; choose one with --metric" if known else "it has no measurement"
        raise ConfigurationError(f"{name} has no {metric}; {has}.{suggest(metric, known)}")
    if not is_of_training(metric) or len(curve) <= NUM_MEANS:
        return curve
    edges = [round(index * len(curve) / NUM_MEANS) for index in range(NUM_MEANS + 1)]
    parts = [curve[start:end] for start, end in pairwise(edges)]
    return [(part[-1][0], statistics.fmean(value for _, value in part)) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Runs of the same settings, one per seed."""

    label: str
    runs: tuple[ComparedRun, ...]

    @cached_property
    def final(self) -> Spread:
        """Return the spread of the runs' last values."""
        return spread([run.final for run in self.runs])

    @property
    def by_seed(self) -> dict[str, float]:
        """Return the last value of each seed's run."""
        return {run.seed: run.final for run in self.runs}

    @property
    def tokens(self) -> float:
        """Return the mean tokens of the runs: with a budget of time they end at different steps."""
        return statistics.fmean(run.tokens for run in self.runs)

    @property
    def held_out_bytes(self) -> int:
        """Return the bytes of held-out text that a run's last value is measured on."""
        return self.runs[0].held_out.num_bytes

    @property
    def flops(self) -> float:
        """Return the FLOPs of a run, by PaLM's count."""
        return self.tokens * self.runs[0].flops_per_token

    @property
    def tokens_per_second(self) -> float | None:
        """Return the mean speed of the runs."""
        known = [run.tokens_per_second for run in self.runs if run.tokens_per_second is not None]
        return statistics.fmean(known) if known else None

    def seconds_at(self, tokens: float) -> float | None:
        """Return the mean seconds of the runs' own steps until these tokens; None if one has no accounts."""
        known = [spent for run in self.runs if (spent := run.seconds_at(tokens)) is not None]
        return statistics.fmean(known) if len(known) == len(self.runs) else None

    @property
    def ends(self) -> tuple[float, float]:
        """Return the tokens of the run that ended first and of the one that ended last."""
        tokens = [run.tokens for run in self.runs]
        return min(tokens), max(tokens)

    @cached_property
    def seed_values(self) -> list[tuple[float, list[float]]]:
        """Return the values of all seeds where all were measured, then their last values at their mean tokens."""
        curves = [dict(run.curve) for run in self.runs]
        shared = sorted(set.intersection(*map(set, curves)))
        values = [(tokens, [curve[tokens] for curve in curves]) for tokens in shared]
        first, last = self.ends
        return values if first == last else [*values, (self.tokens, [run.final for run in self.runs])]

    @cached_property
    def mean_curve(self) -> Curve:
        """Return the mean over the seeds."""
        return [(tokens, statistics.fmean(values)) for tokens, values in self.seed_values]

    @property
    def band(self) -> Curve:
        """Return the outline between the highest and the lowest seed, there and back; empty for one seed."""
        if len(self.runs) < 2:
            return []
        upper = [(tokens, max(values)) for tokens, values in self.seed_values]
        return [*upper, *((tokens, min(values)) for tokens, values in reversed(self.seed_values))]

    def tokens_to_reach(self, target: float) -> float | None:
        """Return the tokens until the mean curve first reaches target, on a straight line between two points.

        None: never.
        """
        before: tuple[float, float] | None = None
        for tokens, value in self.mean_curve:
            if value <= target or math.isclose(value, target):
                if before is None or not math.isfinite(before[1]) or value >= target:
                    return tokens
                return before[0] + (before[1] - target) / (before[1] - value) * (tokens - before[0])
            before = tokens, value
        return None


def make_choices(runs: Sequence[ComparedRun]) -> tuple[tuple[Choice, ...], dict[str, str]]:
    """Group runs into choices, the best first; also name the runs that repeat a seed, which show no noise."""
    groups: defaultdict[frozenset[tuple[str, str]], dict[str, ComparedRun]] = defaultdict(dict)
    repeated: dict[str, str] = {}
    for run in runs:
        group = groups[frozenset(run.settings.items())]
        if run.seed in group:
            repeated[run.name] = f"the settings and seed of {group[run.seed].name}"
        else:
            group[run.seed] = run
    members = [tuple(group.values()) for group in groups.values()]
    choices = [Choice(label=label, runs=runs) for label, runs in zip(_labels(members), members, strict=True)]
    return tuple(sorted(choices, key=lambda choice: choice.final.mean)), repeated


def _labels(groups: Sequence[tuple[ComparedRun, ...]]) -> list[str]:
    """Name groups by the overrides typed for them alone, else by their differing settings, else by a run's name.

    A single group gets its trial's values, or all its overrides.
    """
    if len(groups) == 1 and (trial := trial_of(groups[0][0].folder)):
        return [" ".join(trial.words)]
    typed = [min((run.words for run in runs), key=len) for runs in groups]
    shared = set(typed[0]).intersection(*typed) if len(typed) > 1 else set[str]()
    labels = [" ".join(word for word in words if word not in shared) or "as given" for words in typed]
    if len(set(labels)) == len(labels):
        return labels
    settings = [runs[0].settings for runs in groups]
    keys = sorted({key for each in settings for key in each})
    differing = [key for key in keys if len({each.get(key) for each in settings}) > 1][:MAX_WORDS]
    labels = [" ".join(f"{key}={each[key]}" for key in differing if key in each) for each in settings]
    return labels if len(set(labels)) == len(labels) else [runs[0].name for runs in groups]
