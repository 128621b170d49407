"""Runs side by side: seeds of one config are one choice with a spread; choices differ, with noise."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.comparing.choices import Choice, make_choices
from lmtrain.report.comparing.compared_run import ComparedRun, is_of_training, read_compared_run
from lmtrain.report.comparing.score_decimals import score_decimals
from lmtrain.report.comparing.spread import Difference, difference
from lmtrain.report.runs.comparable_scores import MUCH_MORE_BYTES
from lmtrain.report.runs.find import names_apart
from lmtrain.report.runs.held_out_text import is_one_part, scores_notes
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.held_out_text import HeldOutText


@dataclass(frozen=True, kw_only=True)
class Reach:
    """A choice's expense until its mean curve reached the target.

    `between` holds the tokens of the measurements around it, None where it never did; where they are far apart, they
    are all that is known and the rest is None. `seconds` are of the steps alone, without pauses and time of others.
    """

    between: tuple[float, float] | None
    tokens: float | None
    flops: float | None
    seconds: float | None
    of_baseline: float | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Choices, the best first, each beside the baseline; `left_out` says why a run does not count.

    Scores of several parts of a text (not `is_one_part`) do not compare: no differences, nothing reached.
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

    @property
    def curves_title(self) -> str:
        """Name a plot of all curves."""
        reading = "lower is better" if self.is_one_part else "of other parts of the held-out text: they do not compare"
        return f"{self.metric} over tokens, {len(self.choices)} choices, {reading}"

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
    """Compare the runs in some folders, against the best choice or one named by its words.

    The target is the baseline's last value, or, without one, the worst choice's: then each reaches it.

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
        raise DataError(f"No run has finished, so that there is nothing to compare: {reasons}.")
    check_comparable(whole, metric=metric)
    choices, repeated = make_choices(whole)
    whole = [run for run in whole if run.name not in repeated]
    against = choices[0] if baseline is None else _named(choices, baseline)
    last = choices[-1] if baseline is None else against
    aim = last.final.mean if target is None else target
    one_part = is_of_training(metric) or is_one_part(run.held_out for run in whole)
    beside = choices if one_part else ()
    return Comparison(
        metric=metric,
        held_out=whole[0].held_out,
        is_one_part=one_part,
        choices=choices,
        baseline=against,
        target=aim,
        differences={c.label: difference(c.by_seed, against.by_seed) for c in beside if c is not against},
        reaches={c.label: _reach(c, aim, against) for c in beside},
        left_out=left_out | repeated,
        notes=(
            *_notes(whole, choices, metric=metric),
            *([] if one_part else _without_effect(baseline=baseline, target=target)),
        ),
    )


def check_comparable(runs: Sequence[ComparedRun], *, metric: str) -> None:
    """Refuse numbers of different texts, and nats per token of different tokenizers.

    Raises:
        DataError: They do not compare.
    """
    first = runs[0]
    for run in runs[1:]:
        ours, theirs = first.held_out, run.held_out
        if metric != BITS_PER_BYTE and ours.tokenizer != theirs.tokenizer:
            raise DataError(
                f"{first.name} and {run.name} have different tokenizers, and {metric} is in nats per token, which "
                f"then do not compare; use --metric {BITS_PER_BYTE}."
            )
        if ours.text != theirs.text:
            raise DataError(
                f"{first.name} was measured on {ours.words}, {run.name} on {theirs.words}: different texts, of "
                "which no number compares; compare runs with the same data."
            )


def _read(folder: Path, *, metric: str) -> ComparedRun:
    with told_as_damage(folder, fix="restore it, or leave it out"):
        return read_compared_run(folder, metric=metric)


def _named(choices: Sequence[Choice], words: str) -> Choice:
    exact = [choice for choice in choices if choice.label == words]
    found = exact or [choice for choice in choices if words in choice.label.split()]
    if len(found) == 1:
        return found[0]
    labels = [choice.label for choice in choices]
    if found:
        of_these = ", ".join(choice.label for choice in found)
        raise ConfigurationError(f"--baseline {words!r} names {len(found)} choices; name one of them: {of_these}.")
    raise ConfigurationError(f"--baseline {words!r}: the choices are {', '.join(labels)}.{suggest(words, labels)}")


def _reach(choice: Choice, target: float, against: Choice) -> Reach:
    between = choice.reached_between(target)
    tokens, baseline = choice.tokens_to_reach(target), against.tokens_to_reach(target)
    if tokens is None:
        return Reach(between=between, tokens=None, flops=None, seconds=None, of_baseline=None)
    return Reach(
        between=between,
        tokens=tokens,
        flops=tokens * choice.runs[0].flops_per_token,
        seconds=choice.seconds_at(tokens),
        of_baseline=tokens / baseline if baseline else None,
    )


def _without_effect(*, baseline: str | None, target: float | None) -> list[str]:
    typed = [] if baseline is None else [f"--baseline {shlex.quote(baseline)}"]
    typed += [] if target is None else [f"--target {target:g}"]
    words = f"{' and '.join(typed)} {'have' if len(typed) > 1 else 'has'} no effect here"
    return [f"{words}: scores of several parts have no differences and no target."] if typed else []


def _of_conversations(runs: Sequence[ComparedRun]) -> list[HeldOutText]:
    """Return the text of the scores, where those of conversations are of one part."""
    texts = [run.held_out for run in runs]
    return texts[:1] if texts[0].is_assistant and is_one_part(texts) else []


def _notes(runs: Sequence[ComparedRun], choices: Sequence[Choice], *, metric: str) -> list[str]:
    notes = [f"{run.name}: {run.left_out}" for run in runs if run.left_out]
    notes += [
        f"{run.name}: {format_quantity(run.own.inherited_tokens)} of its tokens, with their FLOPs, are of "
        f"{fork.run_words}; its seconds are its own."
        for run in runs
        if (fork := run.own.fork)
    ]
    notes += [
        f"{choice.label}: its seeds ended between {format_quantity(choice.ends[0])} and "
        f"{format_quantity(choice.ends[1])} tokens; its curve is the mean where all were measured, then of the ends."
        for choice in choices
        if choice.ends[0] != choice.ends[1]
    ]
    if not is_of_training(metric):
        notes += scores_notes(run.held_out for run in runs)
        notes += [f"Scores are of {text.read_words} held-out bytes." for text in _of_conversations(runs)]
    budgets = [choice.flops for choice in choices]
    if max(budgets) > MUCH_MORE_BYTES * min(budgets):
        notes.append(f"The budgets differ: from {min(budgets):.3g} to {max(budgets):.3g} FLOPs.")
    if len(choices) > 1 and any(choice.final.num < 2 for choice in choices):
        notes.append("Where there is one seed alone, the noise is not known; repeat with seed=1,2,3.")
    return notes
