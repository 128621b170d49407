"""An item of a CORE task as rows of ids, with its examples before it, and the verdict from their scores.

Choices share their beginning and are scored from their first difference on; contexts share their end and are scored on
it; the continuation of a context is scored alone. The examples are drawn by the item's number.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmtrain.evaluation.core.bundle import CoreTask
from lmtrain.evaluation.scored_rows import RowScore, ScoredRow

Item = Mapping[str, Any]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
EXAMPLE_SEED: Final = 1234
BETWEEN: Final = "\n\n"


def rows_of(task: CoreTask, items: Sequence[Item], index: int, *, encode: Encode, begin_id: int) -> list[ScoredRow]:
    """Return the rows of one item: one a choice or context, or the one of its continuation; each after `begin_id`."""
    drawn = random.Random(EXAMPLE_SEED + index).sample([i for i in range(len(items)) if i != index], task.num_shots)
    before = "".join(_solved(task, items[one]) + BETWEEN for one in drawn)
    item, delimiter = items[index], task.delimiter
    if task.kind == "language_modeling":
        asked = f"{before}{item['context'].strip()}{delimiter}"
        rows = [[begin_id, *ids] for ids in encode([asked.strip(), asked + item["continuation"]])]
        return [_scored(rows[1], common_start(rows))]
    if task.kind == "multiple_choice":
        texts = [f"{before}{item['query']}{delimiter}{choice}" for choice in item["choices"]]
        rows = [[begin_id, *ids] for ids in encode(texts)]
        start = common_start(rows)
        return [_scored(row, start) for row in rows]
    texts = [f"{before}{context}{delimiter}{item['continuation']}" for context in item["context_options"]]
    rows = [[begin_id, *ids] for ids in encode(texts)]
    num_shared = common_start([row[::-1] for row in rows])
    return [_scored(row, len(row) - num_shared) for row in rows]


def is_right(task: CoreTask, item: Item, scores: Sequence[RowScore]) -> bool:
    """Return whether the model's answer is the item's: by the lowest mean nats, or the likeliest ids throughout."""
    if task.kind == "language_modeling":
        return scores[0].is_likeliest
    means = [score.mean_nats for score in scores]
    return means.index(min(means)) == item["gold"]


def common_start(rows: Sequence[Sequence[int]]) -> int:
    """Return how many ids all rows begin with."""
    shortest = min(len(row) for row in rows)
    return next((i for i in range(shortest) if len({row[i] for row in rows}) > 1), shortest)


def _solved(task: CoreTask, item: Item) -> str:
    """Return an item with its answer, as an example."""
    if task.kind == "language_modeling":
        return f"{item['context'].strip()}{task.delimiter}{item['continuation']}"
    if task.kind == "multiple_choice":
        return f"{item['query']}{task.delimiter}{item['choices'][item['gold']]}"
    return f"{item['context_options'][item['gold']]}{task.delimiter}{item['continuation']}"


def _scored(row: Sequence[int], start: int) -> ScoredRow:
    """Return a row scored from a place on: at least its last id, where two answers are alike, and never its first."""
    return ScoredRow(row, min(max(start, 1), len(row) - 1))
