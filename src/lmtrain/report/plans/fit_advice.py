"""The nearest changes of a run too large for its devices, each planned before it is told.

First on the same devices: a smaller micro batch, one lever, another strategy, several levers; then more devices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from typing import Final, Protocol

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.training_plan.fit import Setting, fitting_batches, largest_micro_batch
from lmtrain.accounting.training_plan.plan import Plan

MOST_TRIED: Final = 16  # numbers of devices
MICRO_BATCH: Final = "batch.micro_batch_sequences"

Words = tuple[str, ...]


class Memory(Protocol):
    """The setting behind the memory of a run with some words typed beside."""

    def __call__(self, words: Words, *, measures: bool) -> Setting | None:
        """Return it, None where they are refused, or where the model is new so and `measures` is false."""
        ...


@dataclass(frozen=True, kw_only=True)
class Levers:
    """Words for less memory.

    Of its strategy, `settings`; other `strategies` on the same devices, and those `on_more`; of each of the `others`,
    alternatives. `most_devices` are the words for more than any advised number. `memory` looks at words, and `trains`
    at a strategy's refusals beyond a plan's.
    """

    settings: Sequence[Words]
    strategies: Sequence[Words]
    on_more: Sequence[Words]
    others: Sequence[Sequence[str]]
    most_devices: Words
    memory: Memory
    trains: Callable[[Words], bool]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The candidate changes of a config.

    `planned` gives the plan with some words typed beside, None where they are refused. `words_of_devices` are the words
    for a number of devices.
    """

    planned: Callable[[Words], Plan | None]
    words_of_devices: Callable[[int], Words]
    levers: Callable[[], Levers]


@dataclass(frozen=True)
class Remedy:
    """Words with a fitting plan."""

    words: Words
    plan: Plan

    @property
    def cost(self) -> tuple[float, int, int]:
        """Return its step's time to two digits, then its words, then its bytes sent: the fewest of equal times."""
        seconds = self.plan.speed.step_seconds if self.plan.speed else 0.0
        sent = self.plan.communication.total_bytes if self.plan.communication else 0
        return float(f"{seconds:.1e}"), len(self.words), sent


@dataclass(frozen=True)
class LeverSearch:
    """A search among levers; a model that is new with one of them is measured, in seconds, or passed over."""

    plan: Plan
    changes: Changes
    levers: Levers
    measures: bool

    def here(self) -> list[Remedy]:
        """Return the changes that fit on the same devices: a smaller micro batch, then others, the quickest first.

        Another strategy is told where no micro batch fits and the own settings are slower; several levers where no one
        fits.
        """
        levers = self.levers
        alone = self._quickest([()])
        least = alone.plan.batch.micro_batch_sequences if alone else 0
        own = self._quickest(levers.settings)
        one_each = [own, *(self._quickest([(word,) for word in words]) for words in levers.others)]
        told = [one for one in one_each if one and one.plan.batch.micro_batch_sequences > least]
        if alone is None:
            other = self._quickest(levers.strategies)
            told += [other] if other and (own is None or other.cost < own.cost) else []
        found = [*([alone] if alone else []), *sorted(told, key=lambda one: one.cost)]
        return found or list(islice(self._of_several(), 1))

    def elsewhere(self) -> list[Remedy]:
        """Return the fewest devices to fit on, and fewer ones with one of the other levers, or with all."""
        others = self.levers.others
        saved: list[Words] = [(), *((word,) for words in others for word in words)]
        saved += [tuple(words[0] for words in others)]
        found: list[Remedy] = []
        for words in dict.fromkeys(saved):
            tried = [self._on_more_devices((*way, *words)) for way in self.levers.on_more]
            best = self._first_that_trains(
                sorted(filter(None, tried), key=lambda one: (one.plan.batch.num_ranks, one.cost))
            )
            if best and (not found or best.plan.batch.num_ranks < found[-1].plan.batch.num_ranks):
                found.append(best)
        return found

    def _of_several(self) -> Iterator[Remedy]:
        """Give the quickest change of a strategy and one other lever, of two, and so on."""
        ways: list[Words] = [(), *self.levers.settings, *self.levers.strategies]
        for count in range(1, len(self.levers.others) + 1):
            chosen = [words for some in combinations(self.levers.others, count) for words in product(*some)]
            if one := self._quickest([(*way, *words) for words in chosen for way in ways]):
                yield one

    def _quickest(self, ways: Iterable[Words]) -> Remedy | None:
        """Return the quickest fitting one."""
        return self._first_that_trains(sorted(self._fitting_ones(ways), key=lambda one: one.cost))

    def _first_that_trains(self, found: Iterable[Remedy]) -> Remedy | None:
        return next((one for one in found if self.levers.trains(one.words)), None)

    def _fitting_ones(self, ways: Iterable[Words]) -> list[Remedy]:
        """Return what fits, without more settings of a strategy that fits with fewer: each costs time."""
        found: list[tuple[set[str], Remedy]] = []
        for words in ways:
            settings = {word for word in words if "." in word.partition("=")[0]}
            is_enough = any(fewer <= {*words} and {*words} - fewer <= settings for fewer, _ in found)
            if not is_enough and (one := self._fitting(words)):
                found.append(({*words}, one))
        return [one for _, one in found]

    def _fitting(self, words: Words) -> Remedy | None:
        """Return the words with the micro batch as it is, or the largest to fit."""
        setting = self.levers.memory(words, measures=self.measures)
        largest = setting and largest_micro_batch(setting, in_parts(self.plan.batch, setting))
        if not largest:
            return None
        smaller = (*words, f"{MICRO_BATCH}={largest.micro_batch_sequences}")
        return first_fitting(self.changes, [words, smaller] if words else [smaller])

    def _on_more_devices(self, words: Words) -> Remedy | None:
        """Return the fewest devices for one example at a time; a step divisible by none gets a new size."""
        setting = self.levers.memory((*words, *self.levers.most_devices), measures=self.measures)
        tries: list[Words] = []
        for batch in islice(fitting_batches(setting, self.plan.batch), MOST_TRIED) if setting else ():
            is_larger = batch.tokens_per_step != self.plan.batch.tokens_per_step
            step = (f"batch.tokens_per_step={batch.tokens_per_step}",) if is_larger else ()
            tries.append(
                (
                    *words,
                    *self.changes.words_of_devices(batch.num_ranks),
                    f"{MICRO_BATCH}={batch.micro_batch_sequences}",
                    *step,
                )
            )
        return first_fitting(self.changes, tries)


def remedies_here(plan: Plan, changes: Changes) -> list[Remedy]:
    """Return the changes that fit on the same devices; new models are measured where nothing known fits."""
    levers = changes.levers()
    return (
        LeverSearch(plan, changes, levers, measures=False).here()
        or LeverSearch(plan, changes, levers, measures=True).here()
    )


def remedies_elsewhere(plan: Plan, changes: Changes) -> list[Remedy]:
    """Return the fewest devices to fit on, as it is and with other levers."""
    levers = changes.levers()
    known = LeverSearch(plan, changes, levers, measures=False).elsewhere()
    return known or LeverSearch(plan, changes, levers, measures=True).elsewhere()


def in_parts(batch: BatchPlan, setting: Setting) -> BatchPlan:
    """Return the same step for a strategy of other groups or stages, a rank's whole share at once."""
    parts, stages = setting.tensor.num_ranks, setting.pipeline.num_stages
    sequences = batch.sequences_per_step * parts * setting.slices * stages // batch.num_ranks
    whole = replace(batch, micro_batch_sequences=sequences, accumulation_micro_steps=1)
    return replace(whole, tensor_ranks=parts, context_ranks=setting.slices, num_stages=stages)


def first_fitting(changes: Changes, tries: Iterable[Words]) -> Remedy | None:
    """Return the first words with a fitting plan."""
    planned = ((words, changes.planned(words)) for words in tries)
    return next((Remedy(words, plan) for words, plan in planned if plan and plan.fits), None)
