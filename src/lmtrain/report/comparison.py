"""Runs side by side: choices with the spread of their seeds, their differences, and the tokens to a target."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.compared_runs import Choice, ComparedRun, make_choices, read_compared_run
from lmtrain.report.runs.find import names_apart
from lmtrain.report.runs.held_out import why_unranked
from lmtrain.report.spread import Difference, difference
from lmtrain.storage.damage import refuse_damage
from lmtrain.tracking.sweep_file import HeldOutText

SAME_BUDGET: Final = 1.01  # times the smallest


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a choice used until its mean curve reached the target, at its speed in steps; None: it never did."""

    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    of_baseline: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Choices, the best first, each compared with the baseline; `left_out` says why a run does not count."""

    metric: str
    held_out: HeldOutText
    choices: tuple[Choice, ...]
    baseline: Choice
    target: float
    differences: dict[str, Difference]
    reaches: dict[str, Reach]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain numbers."""
        return {
            "metric": self.metric,
            "held_out": asdict(self.held_out),
            "baseline": self.baseline.label,
            "target": self.target,
            "choices": [self._choice(choice) for choice in self.choices],
            "left_out": self.left_out,
            "notes": list(self.notes),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        found = self.differences.get(choice.label)
        return {
            "choice": choice.label,
            "runs": [run.name for run in choice.runs],
            "seeds": [run.seed for run in choice.runs],
            "final": asdict(choice.final),
            "difference": None if found is None else found.to_json(),
            "tokens": choice.tokens,
            "flops": choice.flops,
            "tokens_per_second": choice.tokens_per_second,
            "to_reach_target": asdict(self.reaches[choice.label]),
            "mean_curve": [list(point) for point in choice.mean_curve],
        }


def compare(
    folders: Sequence[Path], *, metric: str = BITS_PER_BYTE, baseline: str | None = None, target: float | None = None
) -> Comparison:
    """Compare runs with the best choice, or with the one that `baseline` names by its overrides.

    The target is a named baseline's last value, else the worst choice's, so that each reaches it.

    Raises:
        ConfigurationError: No choice is called `baseline`, or a run has no such metric.
        DataError: No run has finished, or the measurements do not compare.
    """
    runs = [_read(folder, name, metric=metric) for folder, name in names_apart(folders).items()]
    whole = [run for run in runs if run.trouble is None]
    left_out = {run.name: run.trouble for run in runs if run.trouble is not None}
    if not whole:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"No run has finished, so there is nothing to compare: {reasons}.")
    if reason := why_unranked([run.held_out for run in whole], metric=metric):
        raise DataError(reason)
    choices, repeated = make_choices(whole)
    against = choices[0] if baseline is None else _named(choices, baseline)
    aim = (choices[-1] if baseline is None else against).final.mean if target is None else target
    return Comparison(
        metric=metric,
        held_out=whole[0].held_out,
        choices=choices,
        baseline=against,
        target=aim,
        differences={c.label: difference(c.by_seed, against.by_seed) for c in choices if c is not against},
        reaches={c.label: _reach(c, aim, against) for c in choices},
        left_out=left_out | repeated,
        notes=tuple(_notes(choices)),
    )


def _read(folder: Path, name: str, *, metric: str) -> ComparedRun:
    with refuse_damage(folder, fix="restore it, or leave it out"):
        return read_compared_run(folder, metric=metric, name=name)


def _named(choices: Sequence[Choice], words: str) -> Choice:
    exact = [choice for choice in choices if choice.label == words]
    found = exact or [choice for choice in choices if words in choice.label.split()]
    if len(found) == 1:
        return found[0]
    labels = [choice.label for choice in found or choices]
    raise ConfigurationError(
        f"baseline: must name one choice of {', '.join(labels)}, got {words}.{suggest(words, labels)}"
    )


def _reach(choice: Choice, target: float, against: Choice) -> Reach:
    tokens, baseline = choice.tokens_to_reach(target), against.tokens_to_reach(target)
    if tokens is None:
        return Reach()
    return Reach(
        tokens=tokens,
        flops=tokens * choice.flops_per_token,
        seconds=tokens / choice.tokens_per_second if choice.tokens_per_second else None,
        of_baseline=tokens / baseline if baseline else None,
    )


def _notes(choices: Sequence[Choice]) -> Iterator[str]:
    budgets = [choice.flops for choice in choices]
    if max(budgets) > SAME_BUDGET * min(budgets):
        yield f"The budgets differ: from {min(budgets):.3g} to {max(budgets):.3g} FLOPs."
    if len(choices) > 1 and any(choice.final.num < 2 for choice in choices):
        yield "With a single seed the noise is not known; repeat with seed=1,2,3."
