"""Advice on a plan: whether it is possible, and otherwise the nearest possible change.

All advice was planned before: the words of a "fits" or "finishes" line, when typed, do fit or finish.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from lmtrain.accounting.budgets import SECONDS_PER_HOUR
from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.training_plan.fit import Setting, largest_micro_batch, memory_of, more_devices
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.report.plans.fit_advice import (
    MICRO_BATCH,
    MOST_TRIED,
    Changes,
    Remedy,
    Words,
    first_fitting,
    remedies_elsewhere,
    remedies_here,
)

HOURS_ON_TOP: Final = (1.0, 1.01, 1.1)  # for costs that grow with the run, such as validation
WITHOUT_TIME: Final = ("budget.hours=null", "budget.usd=null")


@dataclass(frozen=True)
class Advice:
    """Lines for a person, and whether the run fits its devices and its budgets."""

    lines: tuple[str, ...]
    is_possible: bool


def advice(plan: Plan, setting: Setting, changes: Changes) -> Advice:
    """Name each misfit and its remedy, then the work left undone by a budget of time.

    Where a remedy fits, the time is that of the run with it.
    """
    lines: list[str] = []
    remedy: Remedy | None = None
    if plan.fits is False:
        remedy, lines = _misfit(plan, setting, changes)
    elif plan.fits:
        lines = _larger_micro_batch(plan, setting, changes)
    unfinished = _unfinished(remedy.plan if remedy else plan, changes, remedy.words if remedy else ())
    return Advice(lines=(*lines, *unfinished), is_possible=plan.fits is not False and not unfinished)


def _misfit(plan: Plan, setting: Setting, changes: Changes) -> tuple[Remedy | None, list[str]]:
    """Return the first remedy, and the lines on all."""
    needed = f"does not fit: {_gb(memory_of(setting, plan.batch).total)} at the peak"
    lines = [f"{needed}, {_gb(plan.device_bytes or 0)} on the device"]
    if found := remedies_here(plan, changes):
        lines += [f"fits with {' '.join(one.words)}" for one in found]
    elif found := remedies_elsewhere(plan, changes):
        on = [format_count(one.plan.batch.num_ranks, "device") for one in found]
        lines += [f"fits on {num} with {' '.join(one.words)}" for num, one in zip(on, found, strict=True)]
    else:
        lines.append(f"does not fit on any number of devices: {_why_nowhere(plan, setting)}")
    return next(iter(found), None), lines


def _why_nowhere(plan: Plan, setting: Setting) -> str:
    """Name the part of a device's memory that no number of devices makes small enough."""
    memory = memory_of(setting, plan.batch)
    passing = memory.activations + memory.workspace
    if passing > (plan.device_bytes or 0):
        return "one sequence's activations alone are too large"
    held = _gb(memory.total - passing)
    return f"with this optimizer and strategy each holds {held} besides the activations"


def _larger_micro_batch(plan: Plan, setting: Setting, changes: Changes) -> list[str]:
    largest = largest_micro_batch(setting, plan.batch)
    if largest is None or largest.micro_batch_sequences <= plan.batch.micro_batch_sequences:
        return []
    one = first_fitting(changes, [(f"{MICRO_BATCH}={largest.micro_batch_sequences}",)])
    return [f"a larger micro batch fits too: {' '.join(one.words)}"] if one else []


def _unfinished(plan: Plan, changes: Changes, words: Words = ()) -> list[str]:
    """Report a budget of time too short for the run's other budget, and the words to finish; `words` gave the plan."""
    run, asked = plan.horizon, plan.horizon.most_steps
    if plan.speed is None or asked is None or _finishes(plan):
        return []
    done, whole = plan.done, changes.planned(_typed_over(words, WITHOUT_TIME))
    hours = (done.spent(run.time_limit) + ((whole and whole.seconds) or 0.0)) / SECONDS_PER_HOUR
    if run.limited_by == "usd":  # more devices cost as much for less long
        usd = hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0)
        tries: list[Iterable[Sequence[str]]] = [((f"budget.usd={_hundredths(usd * more)}",) for more in HOURS_ON_TOP)]
    else:
        fewest = plan.batch.num_ranks * (asked - done.steps) / max(1, plan.ahead.steps)
        devices = islice(more_devices(plan.batch, fewest=fewest), MOST_TRIED)
        tries = [
            ((f"budget.hours={_hundredths(hours * more)}",) for more in HOURS_ON_TOP),
            (changes.words_of_devices(num) for num in devices),
        ]
    tries.append((f"budget.tokens={format_at_most(run.tokens * share)}",) for share in (1.0, 0.98, 0.9))
    both = [(_typed_over(words, more) for more in each) for each in tries]
    found = [" ".join(tried) for tried in (_first(changes, each) for each in both) if tried]
    given = f" with {' '.join(words)}" if words else ""
    return [
        f"does not finish{given}: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens",
        *([f"finishes with {', or with '.join(found)}"] if found else []),
    ]


def _first(changes: Changes, tries: Iterable[Words]) -> Words | None:
    """Return the first words with a possible plan."""
    return next((words for words in tries if (plan := changes.planned(words)) and _is_possible(plan)), None)


def _typed_over(words: Words, more: Sequence[str]) -> Words:
    """Return both, one word a key."""
    keys = {word.partition("=")[0] for word in more}
    return (*(word for word in words if word.partition("=")[0] not in keys), *more)


def _is_possible(plan: Plan) -> bool:
    return plan.fits is not False and _finishes(plan)


def _finishes(plan: Plan) -> bool:
    run = plan.horizon
    return run.seconds is None or run.most_steps is None or run.most_steps <= run.steps


def _hundredths(number: float) -> str:
    """Write a number rounded up in hundredths."""
    return f"{math.ceil(number * 100) / 100:.2f}".rstrip("0").rstrip(".")


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
