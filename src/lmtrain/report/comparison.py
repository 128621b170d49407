"""Runs side by side: choices with the spread of their seeds, their differences, and the verdict on one new run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.report.compared_runs import Choice, ComparedRun, is_of_training, make_choices, read_compared_run
from lmtrain.report.runs.find import find_runs, names_apart
from lmtrain.report.runs.held_out import MUCH_MORE, is_one_part, scores_notes
from lmtrain.report.spread import CONFIDENCE, Difference, difference, score_decimals, spread, student_quantile
from lmtrain.storage.damage import told_as_damage
from lmtrain.tracking.sweep_file import HeldOutText

Verdict = Literal["better", "worse", "noise", "unknown"]


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


@dataclass(frozen=True, kw_only=True)
class Against:
    """A run's verdict against a baseline: better or worse by more than the noise of the baseline's seeds.

    `difference` is negative if the run is better. `plus_minus` is Student's 95% prediction interval of one more run of
    the baseline: a run outside it is not another seed of the same. One seed shows no noise, and gives no verdict.
    """

    baseline: str
    num_seeds: int
    mean: float
    deviation: float | None
    difference: float | None = None
    plus_minus: float | None = None
    verdict: Verdict = "unknown"
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; `keep` is for automatic searches: better by more than noise."""
        return {**asdict(self), "keep": self.verdict == "better"}


def baseline_runs(path: Path) -> list[ComparedRun]:
    """Read the finished runs of a baseline: a run, or a folder or sweep with its seeds.

    Raises:
        ConfigurationError: There is none, or they are of several choices.
    """
    runs = [read_compared_run(folder) for folder in find_runs([path])]
    finished = [run for run in runs if run.trouble is None and run.curve]
    if not finished:
        troubles = "; ".join(f"{run.name} {run.trouble}" for run in runs)
        raise ConfigurationError(f"--against {path}: no run there is finished: {troubles}.")
    if any(run.settings != finished[0].settings for run in finished):
        raise ConfigurationError(f"--against {path}: must be a run or the seeds of one choice; it holds several.")
    return finished


def judged(folder: Path, baseline: Sequence[ComparedRun], *, name: str, reason: str | None = None) -> Against:
    """Judge a run's folder by a baseline's seeds; a `reason` against it, or no score, gives no verdict."""
    try:
        return against(read_compared_run(folder), baseline, name=name, reason=reason)
    except ConfigurationError as problem:
        return against(baseline[0], baseline, name=name, reason=str(problem))


def against(run: ComparedRun, baseline: Sequence[ComparedRun], *, name: str, reason: str | None = None) -> Against:
    """Judge a finished run by a baseline's seeds; a `reason` against it gives no verdict."""
    seeds = spread([each.final for each in baseline])
    deviation = seeds.standard_deviation
    found = Against(baseline=name, num_seeds=seeds.num, mean=seeds.mean, deviation=deviation)
    if reason := reason or _why_not(run, baseline[0]):
        return replace(found, reason=reason)
    difference, reason = run.final - found.mean, _other_budget(run, baseline[0])
    if reason is None and deviation is None:
        reason = "one seed shows no noise: give the baseline a second run with another seed"
    if reason is not None or deviation is None:
        return replace(found, difference=difference, reason=reason)
    width = student_quantile(CONFIDENCE, freedom=found.num_seeds - 1)
    plus_minus = width * deviation * math.sqrt(1 + 1 / found.num_seeds)
    verdict: Verdict = "noise" if abs(difference) <= plus_minus else "better" if difference < 0 else "worse"
    return replace(found, difference=difference, plus_minus=plus_minus, verdict=verdict)


def _why_not(run: ComparedRun, other: ComparedRun) -> str | None:
    """Say why two runs do not compare, None if they do."""
    if run.trouble is not None or not run.curve:
        return run.trouble or f"it has no {BITS_PER_BYTE}"
    if (run.held_out.text, run.held_out.num_bytes) != (other.held_out.text, other.held_out.num_bytes):
        return f"another held-out text: {run.held_out.num_bytes:,} bytes, not {other.held_out.num_bytes:,}"
    return None


def _other_budget(run: ComparedRun, other: ComparedRun) -> str | None:
    """Describe a run's different budget, None if it was typed the same or comes to as many tokens."""
    mine, theirs = (
        {key: value for key, value in one.settings.items() if key.startswith("budget.")} for one in (run, other)
    )
    if run.tokens == other.tokens or mine == theirs:
        return None
    change = ", ".join(f"{key}={mine[key]}, not {theirs.get(key)}" for key in mine if mine[key] != theirs.get(key))
    return f"another budget: {change} ({run.tokens:,.0f} tokens, not {other.tokens:,.0f}); give both the same"
