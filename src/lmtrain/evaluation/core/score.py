"""CORE: the mean over tasks of accuracies, each centred by its baseline (0 for guessing, 1 for no error).

Rules and the seed of the order as in nanochat, for scores to compare.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.evaluation.core.bundle import CoreTask
from lmtrain.evaluation.core.prompts import Encode, Item, is_right, rows_of
from lmtrain.evaluation.scored_rows import BATCH_TOKENS, score_rows
from lmtrain.models.base import LanguageModel

ORDER_SEED: Final = 1337
ITEMS_AT_ONCE: Final = 256
# Standard deviation of one recipe over 20 seeds (nanochat's discussion 807): a score's noise beyond its items'.
SPREAD_OVER_SEEDS: Final = 0.0062


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """A task's accuracy over its items."""

    label: str
    num_right: int
    num_items: int
    baseline: float

    @property
    def accuracy(self) -> float:
        """Return the share of right answers."""
        return self.num_right / self.num_items

    @property
    def centred(self) -> float:
        """Return 0 for guessing and 1 for no error."""
        return (self.accuracy - self.baseline) / (1 - self.baseline)

    @property
    def standard_error(self) -> float:
        """Return the centred accuracy's standard error from the number of items."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.num_items) / (1 - self.baseline)


@dataclass(frozen=True)
class CoreScore:
    """All tasks."""

    tasks: tuple[TaskScore, ...]

    @property
    def core(self) -> float:
        """Return the mean of the centred accuracies."""
        return sum(task.centred for task in self.tasks) / len(self.tasks)

    @property
    def standard_error(self) -> float:
        """Return the mean's standard error from the numbers of items alone; training's seed adds to it."""
        return math.sqrt(sum(task.standard_error**2 for task in self.tasks)) / len(self.tasks)


def score_core(
    model: LanguageModel,
    tasks: Sequence[CoreTask],
    *,
    encode: Encode,
    begin_id: int,
    max_items: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    told: Callable[[TaskScore], None] = lambda _: None,
) -> CoreScore:
    """Score tasks one after the other, `told` of each; `max_items` of a task at most, None: all.

    `encode` turns texts into ids without special tokens, and `begin_id` begins each row.

    Raises:
        ConfigurationError: `max_items` leaves no item beside a task's examples.
        DataError: A task's file is damaged: before the first is scored.
    """
    by_task = [(task, _drawn(task, max_items)) for task in tasks]
    scores: list[TaskScore] = []
    for task, items in by_task:
        num_right = 0
        for first in range(0, len(items), ITEMS_AT_ONCE):
            numbers = range(first, min(first + ITEMS_AT_ONCE, len(items)))
            spans = [rows_of(task, items, number, encode=encode, begin_id=begin_id) for number in numbers]
            found = iter(score_rows(model, list(chain.from_iterable(spans)), batch_tokens=batch_tokens))
            num_right += sum(
                is_right(task, items[number], list(islice(found, len(of_item))))
                for number, of_item in zip(numbers, spans, strict=True)
            )
        scores.append(TaskScore(label=task.label, num_right=num_right, num_items=len(items), baseline=task.baseline))
        told(scores[-1])
    return CoreScore(tuple(scores))


def _drawn(task: CoreTask, max_items: int | None) -> list[Item]:
    items = task.items()
    random.Random(ORDER_SEED).shuffle(items)
    if max_items is not None and max_items <= task.num_shots:
        raise ConfigurationError(
            f"--max-items {max_items}: {task.label} has {task.num_shots} examples before each item; nearest valid: "
            f"{task.num_shots + 1}."
        )
    return items[:max_items]
