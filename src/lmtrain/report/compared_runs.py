"""Runs for a comparison: their settings, curves and ends; and choices, the runs of one config that differ by seed."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.report.runs.facts import PRUNED, RunRecord, split_measured, trial_of
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
    "run.", "resume", "logger.", "trainer.", "data.num_workers", "data.folder.root", "engine.",
    "callbacks.checkpoint.", "callbacks.progress.", "callbacks.text_samples.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run: `settings` decide what it learns, without the seed; `words` are the overrides typed for it."""

    record: RunRecord
    name: str
    seed: str
    settings: dict[str, str]
    words: tuple[str, ...]
    held_out: HeldOutText
    curve: Curve

    @property
    def final(self) -> float:
        """Return the last value of its curve, which must not be empty."""
        return self.curve[-1][1]

    @property
    def tokens(self) -> float:
        """Return its training tokens at the last measurement."""
        return self.curve[-1][0]

    @property
    def trouble(self) -> str | None:
        """Say why the run's last value is not the result of its settings; None if it is."""
        state, status = self.record.shown_status, self.record.status
        if state != FINISHED:
            code = (
                "" if state == PRUNED or not status or status.exit_code is None else f", exit code {status.exit_code}"
            )
            return f"{state.lower()}{code} at step {self.record.step:,} of {self.record.num_steps:,}"
        if not self.curve:
            return f"no score in {self.record.folder.name}/metrics.jsonl"
        return None if math.isfinite(self.final) else f"diverged: its last value is {self.final}"


def read_compared_run(folder: Path, *, metric: str = BITS_PER_BYTE, name: str | None = None) -> ComparedRun:
    """Read a run's folder; `name` None is the run's own."""
    record = RunRecord(folder)
    flat = flatten(record.job["config"])
    return ComparedRun(
        record=record,
        name=name or record.name,
        seed=flat.get("seed", ""),
        settings={key: value for key, value in flat.items() if key != "seed" and not key.startswith(EXECUTION)},
        words=tuple(word for word in record.overrides if _is_of_learning(word)),
        held_out=held_out_text(folder, record.points, split=split_measured(record.job)),
        curve=_curve(comparable(record.points), metric, name=folder.name, is_over=record.shown_status == FINISHED),
    )


def _is_of_learning(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key not in ("seed", "logger", "experiment") and not f"{key}.".startswith(EXECUTION)


def _curve(points: Sequence[Point], metric: str, *, name: str, is_over: bool) -> Curve:
    """Return a metric over tokens; empty if the run has not measured it yet."""
    if not metric.endswith(MEASURED):
        raise ConfigurationError(f"metric: must end with {' or '.join(MEASURED)} (lower is better), got {metric}.")
    curve = [(float(point.tokens), point.metrics[metric]) for point in points if metric in point.metrics]
    if points and not curve and is_over:
        known = sorted({key for point in points for key in point.metrics if key.endswith(MEASURED)})
        has = f"it has {', '.join(known)}" if known else "it has no measurement"
        raise ConfigurationError(f"{name} has no {metric}; {has}.{suggest(metric, known)}")
    if not metric.startswith("train/") or len(curve) <= NUM_MEANS:
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
    def flops(self) -> float:
        """Return the FLOPs of a run, by PaLM's count."""
        return self.tokens * self.flops_per_token

    @property
    def flops_per_token(self) -> float:
        """Return the FLOPs of a token, by PaLM's count."""
        return self.runs[0].record.plan.get("flops_per_token", {}).get("palm", 0)

    @property
    def tokens_per_second(self) -> float | None:
        """Return the mean speed of the runs over whole steps, with and without loss; None: not logged."""
        known = [speed.tokens_per_second / speed.loss_share for run in self.runs if (speed := run.record.speed)]
        return statistics.fmean(known) if known else None

    @cached_property
    def seed_values(self) -> list[tuple[float, list[float]]]:
        """Return the values of all seeds where all were measured, then their last values at their mean tokens."""
        curves = [dict(run.curve) for run in self.runs]
        shared = sorted(set.intersection(*map(set, curves)))
        values = [(tokens, [curve[tokens] for curve in curves]) for tokens in shared]
        ends = {run.tokens for run in self.runs}
        return values if len(ends) == 1 else [*values, (self.tokens, [run.final for run in self.runs])]

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
        curve = self.mean_curve
        for (start, before), (end, value) in pairwise([curve[0], *curve]):
            if value <= target or math.isclose(value, target):
                share = (before - target) / (before - value) if value < target < before < math.inf else 1.0
                return start + share * (end - start)
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
    if len(groups) == 1 and (trial := trial_of(groups[0][0].record.folder)):
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
