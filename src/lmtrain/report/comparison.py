"""Runs side by side: choices with the spread of their seeds, their differences, and the verdict on one new run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.compared_runs import Choice, ComparedRun, is_of_training, make_choices, read_compared_run
from lmtrain.report.runs.find import names_apart
from lmtrain.report.runs.held_out import MUCH_MORE, is_one_part, scores_notes
from lmtrain.report.spread import Difference, difference, score_decimals
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.sweep_file import HeldOutText


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a choice used until its mean curve reached the target; None: it never did.

    `seconds` are of the steps alone, without pauses and time of other processes.
    """

    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    of_baseline: float | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Choices, the best first, each compared with the baseline; `left_out` says why a run does not count.

    Scores of different parts of a text (not `is_one_part`) do not compare: there are no differences and no target.
    """

    metric: str
    held_out: HeldOutText
    is_one_part: bool
    choices: tuple[Choice, ...]
    baseline: Choice
    target: float
    differences: dict[str, Difference]
    reaches: dict[str, Reach]
    left_out: dict[str, str]
    notes: tuple[str, ...]

    @property
    def decimals(self) -> int:
        """Return the decimals of the choices' scores."""
        return score_decimals(choice.final.mean for choice in self.choices)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain numbers."""
        return {
            "metric": self.metric,
            "held_out": asdict(self.held_out),
            "is_one_part": self.is_one_part,
            "baseline": self.baseline.label,
            "target": self.target,
            "choices": [self._choice(choice) for choice in self.choices],
            "left_out": self.left_out,
            "notes": list(self.notes),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        found, reach = self.differences.get(choice.label), self.reaches.get(choice.label)
        return {
            "choice": choice.label,
            "runs": [run.name for run in choice.runs],
            "seeds": [run.seed for run in choice.runs],
            "held_out_bytes": choice.held_out_bytes,
            "final": asdict(choice.final),
            "difference": None if found is None else found.to_json(),
            "tokens": choice.tokens,
            "flops": choice.flops,
            "tokens_per_second": choice.tokens_per_second,
            "to_reach_target": None if reach is None else asdict(reach),
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
    names = names_apart(folders)
    runs = [replace(_read(folder, metric=metric), name=names[folder]) for folder in folders]
    whole = [run for run in runs if run.trouble is None]
    left_out = {run.name: run.trouble for run in runs if run.trouble is not None}
    if not whole:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"No run has finished, so there is nothing to compare: {reasons}.")
    _require_comparable(whole, metric=metric)
    choices, repeated = make_choices(whole)
    whole = [run for run in whole if run.name not in repeated]
    against = choices[0] if baseline is None else _named(choices, baseline)
    aim = (choices[-1] if baseline is None else against).final.mean if target is None else target
    one_part = is_of_training(metric) or is_one_part(run.held_out for run in whole)
    compared = choices if one_part else ()
    notes = [*_run_notes(whole, metric=metric), *_choice_notes(choices)]
    return Comparison(
        metric=metric,
        held_out=whole[0].held_out,
        is_one_part=one_part,
        choices=choices,
        baseline=against,
        target=aim,
        differences={c.label: difference(c.by_seed, against.by_seed) for c in compared if c is not against},
        reaches={c.label: _reach(c, aim, against) for c in compared},
        left_out=left_out | repeated,
        notes=tuple(notes),
    )


def _read(folder: Path, *, metric: str) -> ComparedRun:
    with told_as_damage(folder, fix="restore it, or leave it out"):
        return read_compared_run(folder, metric=metric)


def _require_comparable(runs: Sequence[ComparedRun], *, metric: str) -> None:
    """Refuse numbers of different texts, and nats per token of different tokenizers."""
    first = runs[0]
    for run in runs[1:]:
        one, other = first.held_out, run.held_out
        if metric != BITS_PER_BYTE and one.tokenizer != other.tokenizer:
            raise DataError(
                f"{first.name} and {run.name} have different tokenizers, so their {metric} (nats per token) does not "
                f"compare; use --metric {BITS_PER_BYTE}."
            )
        if one.text != other.text:
            raise DataError(
                f"{first.name} was measured on {one.words}, {run.name} on {other.words}: different texts do not "
                "compare; compare runs with the same data."
            )


def _named(choices: Sequence[Choice], words: str) -> Choice:
    exact = [choice for choice in choices if choice.label == words]
    found = exact or [choice for choice in choices if words in choice.label.split()]
    if len(found) == 1:
        return found[0]
    labels = [choice.label for choice in found or choices]
    raise ConfigurationError(
        f"--baseline {words!r}: must name one choice of {', '.join(labels)}.{suggest(words, labels)}"
    )


def _reach(choice: Choice, target: float, against: Choice) -> Reach:
    tokens, baseline = choice.tokens_to_reach(target), against.tokens_to_reach(target)
    if tokens is None:
        return Reach()
    return Reach(
        tokens=tokens,
        flops=tokens * choice.runs[0].flops_per_token,
        seconds=choice.seconds_at(tokens),
        of_baseline=tokens / baseline if baseline else None,
    )


def _run_notes(runs: Sequence[ComparedRun], *, metric: str) -> Iterator[str]:
    for run in runs:
        if fork := run.own.fork:
            inherited = f"{format_quantity(run.own.inherited_tokens)} of its tokens, with their FLOPs,"
            yield f"{run.name}: {inherited} are of {fork.run_words}; its seconds are its own."
    if not is_of_training(metric):
        texts = [run.held_out for run in runs]
        yield from scores_notes(texts)


def _choice_notes(choices: Sequence[Choice]) -> Iterator[str]:
    budgets = [choice.flops for choice in choices]
    if max(budgets) > MUCH_MORE * min(budgets):
        yield f"The budgets differ: from {min(budgets):.3g} to {max(budgets):.3g} FLOPs."
    if len(choices) > 1 and any(choice.final.num < 2 for choice in choices):
        yield "With a single seed the noise is not known; repeat with seed=1,2,3."
