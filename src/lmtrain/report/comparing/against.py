"""A run's verdict against a baseline: better or worse by more than the noise of the baseline's seeds.

The interval is of one further run of the baseline (Student's prediction interval): a new run outside of it is no other
seed of the same, at 95%. One seed has no noise to tell, and no verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.errors import ConfigurationError
from lmtrain.report.comparing.compared_run import ComparedRun, read_compared_run
from lmtrain.report.comparing.spread import CONFIDENCE, spread, student_quantile
from lmtrain.report.runs.find import find_runs

Verdict = Literal["better", "worse", "noise", "unknown"]
BUDGET: Final = "budget."


@dataclass(frozen=True, kw_only=True)
class Against:
    """A run beside a baseline; `difference` is below 0 where the run is better, noise is within `plus_minus` of 0."""

    baseline: str
    num_seeds: int
    mean: float
    deviation: float | None
    difference: float | None
    plus_minus: float | None
    verdict: Verdict
    reason: str | None = None

    @property
    def keep(self) -> bool:
        """Tell whether an automatic search keeps the change: only what is better by more than noise."""
        return self.verdict == "better"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "keep": self.keep}


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
        raise ConfigurationError(
            f"--against {path} holds runs of several choices; name one run, or a folder with the seeds of one choice."
        )
    return finished


def judged(folder: Path, baseline: Sequence[ComparedRun], *, name: str, reason: str | None = None) -> Against:
    """Judge a run's folder by a baseline's seeds; a `reason` against it, or no score, leaves no verdict."""
    try:
        return against(read_compared_run(folder), baseline, name=name, reason=reason)
    except ConfigurationError as problem:
        return _unjudged(baseline, name, str(problem))


def against(run: ComparedRun, baseline: Sequence[ComparedRun], *, name: str, reason: str | None = None) -> Against:
    """Judge a finished run by a baseline's seeds; a `reason` against it leaves no verdict."""
    found = _unjudged(baseline, name, reason or _why_not(run, baseline[0]))
    if found.reason is not None:
        return found
    difference, reason = run.final - found.mean, _other_budget(run, baseline[0])
    if reason is None and found.deviation is None:
        reason = "one seed has no noise to tell: give the baseline a second run with another seed"
    if reason is not None or found.deviation is None:
        return replace(found, difference=difference, reason=reason)
    width = student_quantile(CONFIDENCE, freedom=found.num_seeds - 1)
    plus_minus = width * found.deviation * math.sqrt(1 + 1 / found.num_seeds)
    verdict: Verdict = "noise" if abs(difference) <= plus_minus else "better" if difference < 0 else "worse"
    return replace(found, difference=difference, plus_minus=plus_minus, verdict=verdict)


def _unjudged(baseline: Sequence[ComparedRun], name: str, reason: str | None) -> Against:
    found = spread([each.final for each in baseline])
    return Against(
        baseline=name,
        num_seeds=found.num,
        mean=found.mean,
        deviation=found.standard_deviation,
        difference=None,
        plus_minus=None,
        verdict="unknown",
        reason=reason,
    )


def _why_not(run: ComparedRun, other: ComparedRun) -> str | None:
    """Tell why two runs do not compare, None where they do."""
    if run.trouble is not None or not run.curve:
        return run.trouble or f"it has no {BITS_PER_BYTE}"
    if (run.held_out.text, run.held_out.num_bytes) != (other.held_out.text, other.held_out.num_bytes):
        return f"its held-out text is another: {run.held_out.num_bytes:,} bytes, not {other.held_out.num_bytes:,}"
    return None


def _other_budget(run: ComparedRun, other: ComparedRun) -> str | None:
    """Tell a run's other budget, None where the words of it are the same, or come to as many tokens."""
    mine, its = ({key: value for key, value in one.settings.items() if key.startswith(BUDGET)} for one in (run, other))
    if run.tokens == other.tokens or mine == its:
        return None
    change = ", ".join(f"{key}={mine[key]}, not {its.get(key)}" for key in mine if mine[key] != its.get(key))
    return f"its budget is another: {change} ({run.tokens:,.0f} tokens, not {other.tokens:,.0f}); give both the same"
