"""Choices: the runs of one config, differing by seed alone, named by the words absent from other choices."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from lmtrain.report.comparing.compared_run import ComparedRun, Curve
from lmtrain.report.comparing.spread import Spread, spread
from lmtrain.report.runs.shown_state import trial_of

MAX_WORDS = 3
FAR_APART: Final = 1.5  # times the tokens before it: a curve that falls steeply first is no straight line to there


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Runs of the same settings with a seed each."""

    label: str
    runs: tuple[ComparedRun, ...]

    @cached_property
    def final(self) -> Spread:
        """Return the last values of the runs."""
        return spread([run.final for run in self.runs])

    @property
    def by_seed(self) -> dict[str, float]:
        """Return the last value of each seed's run."""
        return {run.seed: run.final for run in self.runs}

    @property
    def tokens(self) -> float:
        """Return the mean tokens of the runs: those of a budget of time end at different steps."""
        return sum(run.tokens for run in self.runs) / len(self.runs)

    @property
    def held_out_bytes(self) -> int:
        """Return the bytes of held-out text behind a run's last value."""
        return self.runs[0].held_out.num_bytes

    @property
    def flops(self) -> float:
        """Return the FLOPs of a run, by PaLM's count."""
        return self.tokens * self.runs[0].flops_per_token

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Return the mean speed of the runs."""
        known = [run.tokens_per_second for run in self.runs if run.tokens_per_second is not None]
        return spread(known).mean if known else None

    def seconds_at(self, tokens: float) -> float | None:
        """Return the mean seconds of the runs' own steps until so many tokens; None where one has no accounts."""
        known = [spent for run in self.runs if (spent := run.seconds_at(tokens)) is not None]
        return spread(known).mean if len(known) == len(self.runs) else None

    @property
    def ends(self) -> tuple[float, float]:
        """Return the tokens of the run that ended first and of the one that ended last."""
        tokens = [run.tokens for run in self.runs]
        return min(tokens), max(tokens)

    @cached_property
    def seed_values(self) -> list[tuple[float, list[float]]]:
        """Return the values of all seeds where all of them were measured, then of their ends, at their mean tokens."""
        curves = [dict(run.curve) for run in self.runs]
        shared = sorted(set.intersection(*map(set, curves)))
        values = [(tokens, [curve[tokens] for curve in curves]) for tokens in shared]
        first, last = self.ends
        return values if first == last else [*values, (self.tokens, [run.final for run in self.runs])]

    @cached_property
    def mean_curve(self) -> Curve:
        """Return the mean over the seeds."""
        return [(tokens, spread(values).mean) for tokens, values in self.seed_values]

    def reached_between(self, target: float) -> tuple[float, float] | None:
        """Return the tokens of the last point above target and of the first as low; of a point at it twice its own.

        Before the first point are the tokens of the run that a fork left.
        """
        before = float(min(run.own.inherited_tokens for run in self.runs))
        for tokens, value in self.mean_curve:
            if math.isclose(value, target):
                return tokens, tokens
            if value <= target:
                return before, tokens
            before = tokens
        return None

    def tokens_to_reach(self, target: float) -> float | None:
        """Return the tokens until the mean curve is first as low as target, on a straight line between two points.

        None: never, or somewhere between two points too far apart for the line.
        """
        found, values = self.reached_between(target), dict(self.mean_curve)
        if found is None or found[0] not in values or found[1] > FAR_APART * found[0]:
            return None
        before, after = found
        if before == after:
            return after
        high, low = values[before], values[after]
        return before + (high - target) / (high - low) * (after - before) if math.isfinite(high) else None


def make_choices(runs: Sequence[ComparedRun]) -> tuple[tuple[Choice, ...], dict[str, str]]:
    """Sort runs into choices, the best first, and name repetitions of a seed: they say nothing about noise."""
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
    """Name groups by the words typed for them alone, else by their differing settings, else by a run's name.

    One group alone has its trial's values, or all its words.
    """
    if len(groups) == 1 and (trial := trial_of(groups[0][0].folder)):
        return [" ".join(trial.words)]
    typed = [min((run.words for run in runs), key=len) for runs in groups]
    shared = set(typed[0]).intersection(*typed) if len(typed) > 1 else set[str]()
    labels = [" ".join(word for word in words if word not in shared) or "as given" for words in typed]
    if len(set(labels)) == len(labels):
        return labels
    labels = [_differing(runs[0], groups) for runs in groups]
    return labels if len(set(labels)) == len(labels) else [runs[0].name for runs in groups]


def _differing(run: ComparedRun, groups: Sequence[tuple[ComparedRun, ...]]) -> str:
    others = [runs[0].settings for runs in groups]
    keys = [key for key in sorted(run.settings) if len({other.get(key) for other in others}) > 1]
    return " ".join(f"{key}={run.settings[key]}" for key in keys[:MAX_WORDS])
