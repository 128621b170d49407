"""Advice on a plan: whether it is possible, and otherwise the nearest possible change.

All advice was planned before: the words of a "fits" or "finishes" line, when typed, do fit or finish.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.training_plan.fit import (
    Setting,
    fitting_batches,
    largest_micro_batch,
    memory_of,
    more_devices,
)
from lmtrain.accounting.training_plan.plan import Plan

MOST_TRIED: Final = 16  # numbers of devices
HOURS_ON_TOP: Final = (1.0, 1.01, 1.1)  # for costs that grow with the run, such as validation


@dataclass(frozen=True)
class Advice:
    """Lines for a person, and whether the run fits its devices and its budgets."""

    lines: tuple[str, ...]
    is_possible: bool


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The candidate changes of a config.

    `planned` gives the plan with some words typed beside, None where they are refused. `words_of_devices` are the words
    for a number of devices. `recomputed` decides the memory under each option that recomputes all blocks, None where it
    is not known without measuring; `offloaded` with optimizer state in host memory, where it may be; `sharded` under
    strategies that shard over all ranks, with their words.
    """

    planned: Callable[[Sequence[str]], Plan | None]
    words_of_devices: Callable[[int], Sequence[str]]
    sharded: Callable[[], Sequence[tuple[Sequence[str], Setting]]]
    recomputed: Mapping[str, Setting | None] = field(default_factory=dict[str, Setting | None])
    offloaded: Mapping[str, Setting] = field(default_factory=dict[str, Setting])


Words = Sequence[str]
Tried = tuple[Words, Plan]


@dataclass(kw_only=True)
class _Remedies:
    """Lines so far, and the first change that fits."""

    lines: list[str] = field(default_factory=list[str])
    first: Tried | None = None

    def add(self, claim: str, tried: Tried | None) -> None:
        """Write a change that was found behind what it does."""
        if tried:
            self.lines.append(claim + " ".join(tried[0]))
            self.first = self.first or tried


def advice(plan: Plan, setting: Setting, changes: Changes) -> Advice:
    """Name each misfit and its remedy, then the work left undone by a budget of time.

    Where a remedy fits, the time is that of the run with it.
    """
    found = _Remedies()
    if plan.fits is False:
        _add_misfit(found, plan, setting, changes)
    elif plan.fits:
        largest = _micro_batch(plan, setting)
        if largest and int(largest.rpartition("=")[2]) > plan.batch.micro_batch_sequences:
            found.add("a larger micro batch fits too: ", _first(changes, [(largest,)], _fits))
    if plan.fits is False and found.first:
        words, fitting = found.first
        unfinished = _unfinished(fitting, changes, words)
    else:
        unfinished = _unfinished(plan, changes)
    return Advice(lines=(*found.lines, *unfinished), is_possible=plan.fits is not False and not unfinished)


def _add_misfit(found: _Remedies, plan: Plan, setting: Setting, changes: Changes) -> None:
    memory, device_bytes = memory_of(setting, plan.batch), plan.device_bytes or 0
    found.lines.append(f"does not fit: {_gb(memory.total)} at the peak, {_gb(device_bytes)} on the device")
    smaller = _micro_batch(plan, setting)
    if smaller:
        found.add("fits with ", _first(changes, [(smaller,)], _fits))
    sent = _first(changes, _with_gradients_sent(plan, setting), _fits)
    if sent and not (smaller and sent[0][-1] == smaller):  # as large a one fits without
        found.add("fits with ", sent)
    for word, recomputed in changes.recomputed.items():
        if recomputed is None:
            found.lines.append(f"{word} keeps only what enters each block")
        elif largest := _micro_batch(plan, recomputed):
            found.add("fits with ", _first(changes, [(word, largest)], _fits))
    for word, offloaded in changes.offloaded.items():
        if not smaller and (largest := _micro_batch(plan, offloaded)):
            found.add("fits with ", _first(changes, [(word, largest)], _fits))
    if not (smaller or sent):
        _add_sharded(found, plan, setting, changes)


def _add_sharded(found: _Remedies, plan: Plan, setting: Setting, changes: Changes) -> None:
    """Say on how many devices the model fits in shards, as it is and with recomputation."""
    num_before = len(found.lines)
    for words, tried in changes.sharded():
        everywhere = replace(tried, is_sharded=True, most_shards=None)
        largest = _micro_batch(plan, everywhere)
        is_new = (not setting.is_sharded or setting.most_shards is not None) and plan.batch.num_ranks > 1
        tries: list[Words] = [(*words, largest)] if largest else []
        tries += [(*words, *more) for more in _with_gradients_sent(plan, everywhere)]
        if is_new and (here := _first(changes, tries, _fits)):
            found.add("fits with ", here)
        else:
            more = _first(changes, _on_more_devices(plan, tried, changes, words), _fits)
            found.add(f"fits on {format_count(more[1].batch.num_ranks, 'device')} with " if more else "", more)
    if len(found.lines) == num_before:
        found.lines.append("does not fit on any number of devices: one sequence's activations alone are too large")


def _with_gradients_sent(plan: Plan, setting: Setting) -> Iterator[Words]:
    """Give the words to send shards' gradients at every micro-batch, with the micro batch as it is or the largest."""
    if not (setting.is_sharded and setting.keeps_whole_gradients and setting.word_against):
        return
    if plan.batch.accumulation_micro_steps > 1:
        yield (setting.word_against,)
    if largest := _micro_batch(plan, replace(setting, keeps_whole_gradients=False)):
        yield (setting.word_against, largest)


def _on_more_devices(plan: Plan, tried: Setting, changes: Changes, words: Words) -> Iterator[Words]:
    """Give the words for one sequence at a time on more devices; a step divisible by none gets a new size."""
    for batch in islice(fitting_batches(tried, plan.batch), MOST_TRIED):
        is_larger = batch.tokens_per_step != plan.batch.tokens_per_step
        step = (f"batch.tokens_per_step={batch.tokens_per_step}",) if is_larger else ()
        devices = changes.words_of_devices(batch.num_ranks)
        yield (*words, *devices, "batch.micro_batch_sequences=1", *step)


def _unfinished(plan: Plan, changes: Changes, words: Words = ()) -> list[str]:
    """Report a budget of time too short for the run's other budget, and the words to finish; `words` gave the plan."""
    run, asked = plan.horizon, plan.horizon.most_steps
    if plan.speed is None or asked is None or _finishes(plan):
        return []
    hours = (plan.speed.seconds(asked) + plan.evaluation_seconds) / 3600
    if run.limited_by == "usd":  # more devices cost as much for less long
        usd = hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0)
        tries: list[Iterable[Words]] = [((f"budget.usd={math.ceil(usd * more)}",) for more in HOURS_ON_TOP)]
    else:
        fewest = plan.batch.num_ranks * asked / run.steps
        devices = islice(more_devices(plan.batch, fewest=fewest), MOST_TRIED)
        tries = [
            ((f"budget.hours={_hundredths(hours * more)}",) for more in HOURS_ON_TOP),
            (changes.words_of_devices(num) for num in devices),
        ]
    tries.append((f"budget.tokens={format_at_most(run.tokens * share)}",) for share in (1.0, 0.98, 0.9))
    both = [(_typed_over(words, more) for more in each) for each in tries]
    found = [" ".join(tried[0]) for tried in (_first(changes, each, _is_possible) for each in both) if tried]
    given = f" with {' '.join(words)}" if words else ""
    return [
        f"does not finish{given}: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens",
        *([f"finishes with {', or with '.join(found)}"] if found else []),
    ]


def _micro_batch(plan: Plan, setting: Setting) -> str | None:
    """Return the word for the largest micro batch within a device's memory."""
    largest = largest_micro_batch(setting, plan.batch)
    return f"batch.micro_batch_sequences={largest.micro_batch_sequences}" if largest else None


def _first(changes: Changes, tries: Iterable[Words], holds: Callable[[Plan], bool]) -> Tried | None:
    """Return the first words with a plan as claimed, and the plan."""
    for words in tries:
        plan = changes.planned(words)
        if plan is not None and holds(plan):
            return words, plan
    return None


def _typed_over(words: Words, more: Words) -> Words:
    """Return both, one word a key."""
    keys = {word.partition("=")[0] for word in more}
    return (*(word for word in words if word.partition("=")[0] not in keys), *more)


def _fits(plan: Plan) -> bool:
    return plan.fits is True


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
