"""Advice on a plan: whether it fits and finishes, and otherwise at most three changes, the cheapest first.

Every change is planned before it is printed.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, Protocol

from lmtrain.accounting.batches import MICRO_BATCH
from lmtrain.accounting.budgets import SECONDS_PER_HOUR
from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.training_plan.fit import Setting, largest_micro_batch
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.tried_words import NODE, with_words, words_of_devices
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.optimizer import CPU_OFFLOAD, require_settings

MOST_REMEDIES: Final = 3
MOST_DEVICES: Final = 16_384
MORE: Final = (1.0, 1.01, 1.1)  # for costs that grow with the run, such as validation
FEWER: Final = (1.0, 0.98, 0.9)
WITHOUT_TIME: Final = ("budget.hours=null", "budget.usd=null")
Words = tuple[str, ...]


class Planned(Protocol):
    """Plans a config with more words typed; None where they are refused, or where its model is new here."""

    def __call__(self, words: Sequence[str], *, measures: bool = False) -> Plan | None:
        """Return the plan; `measures` a new model too, which takes seconds."""
        ...


def advice(config: RunConfig, plan: Plan, setting: Setting, planned: Planned) -> Advice:
    """Return a line for each way in which a run does not fit or finish, and the changes with which it does."""
    if plan.fits is False and plan.memory is not None:
        found: list[str] = []
        for measures in (False, True):
            found = found or [*islice(_fitting(config, plan, partial(planned, measures=measures)), MOST_REMEDIES)]
        found = found or ["does not fit on any number of devices: a smaller model or context is needed"]
        sizes = f"{_gb(plan.memory.total)} at the peak, {_gb(plan.device_bytes or 0)} on the device"
        return Advice((f"does not fit: {sizes}", *found), is_possible=False)
    unfinished = _unfinished(plan, planned)
    lines = [*unfinished]
    largest = largest_micro_batch(setting, plan.batch) if plan.fits else None
    if largest and largest.sequences_per_micro_step > plan.batch.sequences_per_micro_step:
        lines.insert(0, f"a larger micro batch fits too: {MICRO_BATCH}={largest.sequences_per_micro_step}")
    return Advice(tuple(lines), is_possible=not unfinished)


def _fitting(config: RunConfig, plan: Plan, planned: Planned) -> Iterator[str]:
    """Yield lines with changes that make a run fit, each with the micro batch as it is or the largest that fits.

    More devices are looked at only where no change fits on the same ones.
    """
    fitting: list[Words] = []
    for words in _changes(config):
        if any({*one} <= {*words} for one in fitting):
            continue
        found, typed = planned(words) if words else None, words
        if found is None or not found.fits:
            found = planned((*words, f"{MICRO_BATCH}=auto"))
            typed = (*words, f"{MICRO_BATCH}={found.batch.sequences_per_micro_step}") if found else words
        if found and found.fits:
            fitting.append(words)
            yield f"fits with {' '.join(typed)}"
    num_devices = max(NODE, 2 * plan.batch.num_ranks)
    while not fitting and num_devices <= MOST_DEVICES:
        for words in _changes_on(config, plan, num_devices):
            found = planned((*words, f"{MICRO_BATCH}=auto"))
            if found and found.fits:
                fitting.append(words)
                typed = " ".join((*words, f"{MICRO_BATCH}={found.batch.sequences_per_micro_step}"))
                yield f"fits on {format_count(num_devices, 'device')} with {typed}"
        num_devices *= 2


def _changes(config: RunConfig) -> Iterator[Words]:
    """Yield changes for less memory on the same devices: the smaller micro batch, each option alone, then together."""
    options = _savings(config)
    shards = _shards(config) if config.num_ranks > 1 else []
    yield ()
    yield from ((word,) for word in [*options, *shards])
    for number in range(2, len(options) + 1):
        yield tuple(options[:number])
    for word in shards:
        yield (word, *_savings(with_words(config, [word])))


def _changes_on(config: RunConfig, plan: Plan, num_devices: int) -> Iterator[Words]:
    """Yield changes on more devices, over which the model is cut."""
    devices, batch = words_of_devices(config, num_devices), plan.batch
    each = batch.num_ranks // batch.num_data_ranks  # devices with the same tokens
    least = batch.context_tokens * max(1, num_devices // each)
    if batch.tokens_per_step % least:
        devices = (*devices, f"batch.tokens_per_step={-(-batch.tokens_per_step // least) * least}")
    for word in _shards(config) or [""]:
        chosen = with_words(config, [word]) if word else config
        cut = (*devices, *([word] if word else []))
        yield cut
        yield (*cut, *_savings(chosen))


def _savings(config: RunConfig) -> list[str]:
    """Return the settings and options for less memory that are not chosen yet, the cheapest first."""
    loss = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    recompute = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed) or RecomputeFacts()
    found = [f"{config.spread.group}.{word}" for word in config.spread.savings]
    if not recompute.keeps_least:
        found += words_of(RecomputeFacts, lambda facts: facts.keeps_least)[:1]
    if not loss.in_chunks:
        found += words_of(LossFacts, lambda facts: facts.in_chunks)[:1]
    if not config.optimizer_cpu_offload and config.cluster.device is not None:
        found.append(f"{CPU_OFFLOAD}=true")
    return found


def _shards(config: RunConfig) -> list[str]:
    """Return the strategies that cut the model over all ranks and take the optimizer, none where one does already."""
    if config.spread.cuts_parameters:
        return []
    found = [*words_of(ModelSpread, lambda spread: spread.shards_most and spread.takes_many)]
    try:
        for word in found:
            require_settings(with_words(config, [word]))
    except ConfigurationError:
        return []
    return found


def _unfinished(plan: Plan, planned: Planned) -> list[str]:
    """Return the share of the work that a budget of time is enough for, and the settings with which the run ends."""
    run, asked = plan.horizon, plan.horizon.most_steps
    if plan.speed is None or asked is None or _finishes(plan):
        return []
    whole = planned(WITHOUT_TIME)
    hours = (plan.done.spent(run.time_limit) + ((whole and whole.seconds) or 0.0)) / SECONDS_PER_HOUR
    amount = hours if run.limited_by == "hours" else hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0)
    tries = (
        [f"budget.{run.limited_by}={math.ceil(amount * more * 100) / 100:g}" for more in MORE],
        [f"budget.tokens={format_at_most(run.tokens * share)}" for share in FEWER],
    )
    found = [next((word for word in words if _is_enough(planned((word,)))), None) for words in tries]
    lines = [
        f"does not finish: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens"
    ]
    typed = ", or with ".join(filter(None, found))
    return [*lines, f"finishes with {typed}"] if typed else lines


def _is_enough(plan: Plan | None) -> bool:
    return plan is not None and _finishes(plan)


def _finishes(plan: Plan) -> bool:
    run = plan.horizon
    return run.seconds is None or run.most_steps is None or run.most_steps <= run.steps


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
