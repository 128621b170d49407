"""Advice on a plan: whether it fits and finishes, and otherwise at most three remedies, the cheapest first.

Every remedy was planned before it is printed: its words, when typed, do fit or finish.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import SECONDS_PER_HOUR
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.options.parts import LossFacts, RecomputeFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_at_most, format_count, format_quantity
from lmtrain.accounting.training_plan.fit import (
    NODE,
    NUMBERS_OF_DEVICES,
    Setting,
    fitting_batches,
    largest_micro_batch,
    least_memory,
    memory_of,
    more_devices,
)
from lmtrain.accounting.training_plan.plan import Advice, Plan
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import words_of
from lmtrain.run.planning.auto_choices import MICRO_BATCH, require_parts_of_strategy
from lmtrain.run.planning.known_models import facts_known, key_of, model_facts
from lmtrain.run.planning.setting import fit_setting, planned_setting
from lmtrain.run.planning.tried_words import with_words, words_of_devices
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.validators.optimizer import CPU_OFFLOAD as OFFLOAD

MOST_REMEDIES: Final = 3
MOST_TRIED: Final = 16  # numbers of devices
HOURS_ON_TOP: Final = (1.0, 1.01, 1.1)  # for costs that grow with the run, such as validation
WITHOUT_TIME: Final = ("budget.hours=null", "budget.usd=null")
Words = tuple[str, ...]
Planned = Callable[[Sequence[str]], Plan | None]  # the plan with more words typed, None where they are refused


@dataclass(frozen=True)
class Remedy:
    """Words with a fitting plan."""

    words: Words
    plan: Plan

    @property
    def cost(self) -> tuple[float, int, int]:
        """Return the step's time to two digits, the number of words and the bytes sent."""
        seconds = self.plan.speed.step_seconds if self.plan.speed else 0.0
        sent = self.plan.communication.total_bytes if self.plan.communication else 0
        return float(f"{seconds:.1e}"), len(self.words), sent


def advice(config: RunConfig, facts: ModelFacts, plan: Plan, setting: Setting, planned: Planned) -> Advice:
    """Return a line for each misfit with its remedies, then for the work that a budget of time leaves undone.

    Where a remedy fits, the time is that of the run with it.
    """
    lines: list[str] = []
    remedies: list[Remedy] = []
    if plan.fits is False:
        remedies = Remedies(config, facts, plan, planned).found()
        needed, held = memory_of(setting, plan.batch).total, plan.device_bytes or 0
        lines = [f"does not fit: {_gb(needed)} at the peak, {_gb(held)} on the device", *map(_line(plan), remedies)]
        lines += [] if remedies else ["does not fit on any number of devices: a smaller model or context is needed"]
    elif plan.fits and (largest := largest_micro_batch(setting, plan.batch)):
        words = (f"{MICRO_BATCH}={largest.micro_batch_sequences}",)
        if largest.micro_batch_sequences > plan.batch.micro_batch_sequences and _first(planned, [words]):
            lines = [f"a larger micro batch fits too: {words[0]}"]
    best = remedies[0] if remedies else Remedy((), plan)
    unfinished = _unfinished(best, planned, config)
    return Advice(lines=(*lines, *unfinished), is_possible=plan.fits is not False and not unfinished)


def _line(plan: Plan) -> Callable[[Remedy], str]:
    def line(remedy: Remedy) -> str:
        devices = remedy.plan.batch.num_ranks
        on = "" if devices == plan.batch.num_ranks else f" on {format_count(devices, 'device')}"
        return f"fits{on} with {' '.join(remedy.words)}"

    return line


@dataclass(frozen=True)
class Remedies:
    """A search for settings with which a run fits: on the same devices, then on more."""

    config: RunConfig
    facts: ModelFacts
    plan: Plan
    planned: Planned

    def found(self) -> list[Remedy]:
        """Return the cheapest that fit; models that are new on this machine are measured where nothing known fits."""
        for measures in (False, True):
            for ways in (self._single_changes(), self._several_changes()):
                if found := self._cheapest(ways, measures=measures):
                    return found
            if found := self._on_more_devices(measures=measures):
                return found
        return []

    def _single_changes(self) -> Iterator[Words]:
        """Yield one change each: of the micro batch alone, of the strategy's settings, of another option."""
        yield ()
        yield from settings_of_strategy(self.config)
        yield from ((word,) for word in less_memory(self.config))

    def _several_changes(self) -> Iterator[Words]:
        """Yield the other strategies, and these and the own settings with the other options."""
        ways = [(), *settings_of_strategy(self.config)]
        ways += strategies(self.config, lambda _: True) if self.config.num_ranks > 1 else []
        options = less_memory(self.config)
        yield from ways
        for number in range(1, len(options) + 1):
            yield from ((*way, *options[:number]) for way in ways)

    def _cheapest(self, ways: Iterable[Words], *, measures: bool) -> list[Remedy]:
        found: list[Remedy] = []
        for words in ways:
            is_enough = any({*one.words} < {*words} for one in found)  # each further setting costs time
            if not is_enough and (one := self._fitting(words, measures=measures)):
                found.append(one)
        return self._that_train(sorted(found, key=lambda one: one.cost))

    def _that_train(self, found: Iterable[Remedy]) -> list[Remedy]:
        """Return the first ones whose strategy takes the model and its optimizer."""

        def trains(remedy: Remedy) -> bool:
            try:
                require_parts_of_strategy(with_words(self.config, remedy.words))
            except ConfigurationError:
                return False
            return True

        return list(islice(filter(trains, found), MOST_REMEDIES))

    def _fitting(self, words: Words, *, measures: bool) -> Remedy | None:
        """Return the words with the micro batch as it is, or the largest that fits."""
        setting = self.memory(words, measures=measures)
        largest = setting and largest_micro_batch(setting, in_parts(self.plan.batch, setting))
        if not largest:
            return None
        smaller = (*words, f"{MICRO_BATCH}={largest.micro_batch_sequences}")
        return _first(self.planned, [words, smaller] if words else [smaller])

    def _on_more_devices(self, *, measures: bool) -> list[Remedy]:
        """Return the fewest devices that hold one example at a time, in shards, and fewer with other options."""
        at_least_a_node = with_words(self.config, words_of_devices(self.config, max(NODE, self.config.num_ranks)))
        ways, options = (
            strategies(at_least_a_node, lambda spread: spread.shards_over == "all ranks"),
            less_memory(self.config),
        )
        found: list[Remedy] = []
        for saved in dict.fromkeys([(), *((word,) for word in options), tuple(options)]):
            tried = [one for way in ways if (one := self._on_fewest((*way, *saved), measures=measures))]
            tried.sort(key=lambda one: (one.plan.batch.num_ranks, one.cost))
            best = self._that_train(tried)[:1]
            if best and (not found or best[0].plan.batch.num_ranks < found[-1].plan.batch.num_ranks):
                found += best
        return found[-MOST_REMEDIES:]

    def _on_fewest(self, words: Words, *, measures: bool) -> Remedy | None:
        """Return the fewest devices for one example at a time; a step that none divides gets a new size."""
        most = words_of_devices(self.config, NUMBERS_OF_DEVICES[-1])
        setting = self.memory((*words, *most), measures=measures)
        batches = islice(fitting_batches(setting, self.plan.batch), MOST_TRIED) if setting else ()
        return _first(self.planned, [(*words, *self._words_of(batch)) for batch in batches])

    def _words_of(self, batch: BatchPlan) -> Words:
        is_larger = batch.tokens_per_step != self.plan.batch.tokens_per_step
        step = (f"batch.tokens_per_step={batch.tokens_per_step}",) if is_larger else ()
        devices = words_of_devices(self.config, batch.num_ranks)
        return (*devices, f"{MICRO_BATCH}={batch.micro_batch_sequences}", *step)

    def memory(self, words: Words, *, measures: bool) -> Setting | None:
        """Return the inputs of the memory with some words typed.

        None where they are refused, where the weights alone are too large, or for a model that `measures` alone counts.
        """
        try:
            changed = with_words(self.config, words)
            setting = planned_setting(changed)
            least = fit_setting(setting, self.facts)
            if least.device_bytes is not None and least_memory(least, changed.num_ranks) > least.device_bytes:
                return None
            is_same = key_of(changed, setting) == key_of(self.config, planned_setting(self.config))
            facts = self.facts if is_same else facts_known(changed, setting)
            if facts is None and measures:
                facts = model_facts(changed, setting)
        except ConfigurationError:
            return None
        return fit_setting(setting, facts) if facts else None


def settings_of_strategy(config: RunConfig) -> list[Words]:
    """Return the settings for less memory of the config's own strategy."""
    spread = config.spread
    return [tuple(f"{spread.group}.{word}" for word in words) for words in spread.settings_for_less(config.num_ranks)]


def strategies(config: RunConfig, holds: Callable[[ModelSpread], bool]) -> list[Words]:
    """Return the strategies that cut the model and satisfy `holds`, each as it is and with its settings."""
    found: list[Words] = []
    for word in words_of(ModelSpread, lambda facts: facts.cuts_parameters and facts.takes_many and holds(facts)):
        found += [(word, *settings) for settings in [(), *settings_of_strategy(with_words(config, [word]))]]
    return found


def less_memory(config: RunConfig) -> list[str]:
    """Return the options for less memory that are not strategies, without the chosen ones, the cheapest first."""
    loss = facts_of(config.loss.values, LossFacts, allowed=config.allowed) or LossFacts()
    recompute = facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed) or RecomputeFacts()
    is_offloaded = config.optimizer_cpu_offload or config.cluster.device is None
    found = [
        [] if recompute.keeps_least else words_of(RecomputeFacts, lambda facts: facts.keeps_least),
        [] if loss.in_chunks else words_of(LossFacts, lambda facts: facts.in_chunks),
        [] if is_offloaded else [f"{OFFLOAD}=true"],
    ]
    return [words[0] for words in found if words]


def in_parts(batch: BatchPlan, setting: Setting) -> BatchPlan:
    """Return the same step for a strategy of other groups or stages, a rank's whole share at once."""
    parts, stages = setting.tensor.num_ranks, setting.pipeline.num_stages
    sequences = batch.sequences_per_step * parts * setting.slices * stages // batch.num_ranks
    whole = replace(batch, micro_batch_sequences=sequences, accumulation_micro_steps=1)
    return replace(whole, tensor_ranks=parts, context_ranks=setting.slices, num_stages=stages)


def _first(planned: Planned, tries: Iterable[Words], *, finishes: bool = False) -> Remedy | None:
    """Return the first words with a fitting plan, and one that finishes where that is asked."""
    for words in tries:
        plan = planned(words)
        if plan and (_finishes(plan) and plan.fits is not False if finishes else plan.fits):
            return Remedy(words, plan)
    return None


def _unfinished(remedy: Remedy, planned: Planned, config: RunConfig) -> list[str]:
    """Return the share of the work that a budget of time is enough for, and the words with which the run finishes."""
    plan, words = remedy.plan, remedy.words
    run, asked = plan.horizon, plan.horizon.most_steps
    if plan.speed is None or asked is None or _finishes(plan):
        return []
    whole = planned(_typed_over(words, WITHOUT_TIME))
    hours = (plan.done.spent(run.time_limit) + ((whole and whole.seconds) or 0.0)) / SECONDS_PER_HOUR
    tries: list[Iterable[Words]] = []
    if run.limited_by == "usd":  # more devices cost as much for less time
        usd = hours * plan.batch.num_ranks * (plan.usd_per_gpu_hour or 0)
        tries.append((f"budget.usd={_hundredths(usd * more)}",) for more in HOURS_ON_TOP)
    else:
        fewest = plan.batch.num_ranks * (asked - plan.done.steps) / max(1, plan.ahead.steps)
        tries.append((f"budget.hours={_hundredths(hours * more)}",) for more in HOURS_ON_TOP)
        devices = islice(more_devices(plan.batch, fewest=fewest), MOST_TRIED)
        tries.append(words_of_devices(config, number) for number in devices)
    tries.append((f"budget.tokens={format_at_most(run.tokens * share)}",) for share in (1.0, 0.98, 0.9))
    found = [_first(planned, (_typed_over(words, more) for more in each), finishes=True) for each in tries]
    typed = [" ".join(one.words) for one in found if one]
    given = f" with {' '.join(words)}" if words else ""
    return [
        f"does not finish{given}: budget.{run.limited_by} ends it after {run.steps / asked:.0%} of the "
        f"{format_quantity(asked * plan.batch.tokens_per_step)} tokens",
        *([f"finishes with {', or with '.join(typed)}"] if typed else []),
    ]


def _typed_over(words: Words, more: Sequence[str]) -> Words:
    """Return both, one word per key."""
    keys = {word.partition("=")[0] for word in more}
    return (*(word for word in words if word.partition("=")[0] not in keys), *more)


def _finishes(plan: Plan) -> bool:
    run = plan.horizon
    return run.seconds is None or run.most_steps is None or run.most_steps <= run.steps


def _hundredths(number: float) -> str:
    """Write a number rounded up to hundredths."""
    return f"{math.ceil(number * 100) / 100:.2f}".rstrip("0").rstrip(".")


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
