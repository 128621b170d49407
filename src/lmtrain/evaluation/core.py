"""CORE: the mean over 22 tasks of accuracies, each centred by its baseline (0 for guessing, 1 for no error).

Tasks, rules and seeds of the DCLM paper's evaluation (arXiv:2406.11794) as nanochat ships them, so that scores compare:
`core.yaml`, `eval_meta_data.csv`, and JSON lines of each task below `eval_data/`.
"""

import csv
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal, get_args

from lmtrain.data.named_files import read_named_rows
from lmtrain.errors import ConfigurationError, DataError, suggest, wrong
from lmtrain.evaluation.scored_rows import BATCH_TOKENS, RowScore, ScoredRow, score_rows
from lmtrain.inference.engine import num_common
from lmtrain.models.base import LanguageModel
from lmtrain.storage import foreign_yaml
from lmtrain.storage.damage import refuse_damage

Kind = Literal["multiple_choice", "schema", "language_modeling"]
Item = Mapping[str, Any]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]

TASKS: Final = "core.yaml"
BASELINES: Final = "eval_meta_data.csv"
OPTIONS: Final = ("multiple_choice", "schema")
EXAMPLE_SEED: Final = 1234
ORDER_SEED: Final = 1337
BETWEEN: Final = "\n\n"
ITEMS_AT_ONCE: Final = 256
# Standard deviation of one recipe over 20 seeds (nanochat's discussion 807): a score's noise beyond its items'.
SPREAD_OVER_SEEDS: Final = 0.0062


@dataclass(frozen=True, kw_only=True)
class CoreTask:
    """A task of the bundle; `baseline` is the accuracy of a guess, from 0 to 1."""

    label: str
    kind: Kind
    file: Path
    num_shots: int
    delimiter: str
    baseline: float

    def items(self) -> list[Item]:
        """Return the task's items."""
        found = [self._item(row, row_id) for row_id, row in read_named_rows(self.file, (), flag=f"task {self.label}")]
        if len(found) <= self.num_shots:
            raise DataError(f"task {self.label}: must have at least {self.num_shots + 1} items, got {len(found)}.")
        return found

    def _item(self, item: Item, row_id: str) -> Item:
        with refuse_damage(f"task {self.label}: {row_id}, a {self.kind} item,", fix="copy the bundle again"):
            answers = dict(enumerate(_texts(self, item)))
            answers[item["gold"] if self.kind in OPTIONS else 0]
        return item


def read_bundle(folder: Path, *, only: tuple[str, ...] = ()) -> list[CoreTask]:
    """Return the tasks of a bundle in their order, or `only` those of these labels."""
    try:
        with (folder / BASELINES).open(encoding="utf-8", newline="") as file:
            baselines = {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in csv.DictReader(file)}
        tasks = [_task(folder, entry, baselines) for entry in foreign_yaml.read(folder / TASKS)["icl_tasks"]]
    except OSError as problem:
        raise DataError(f"{folder} is not a CORE bundle ({problem}); unpack eval_bundle.zip there.") from problem
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as problem:
        raise DataError(f"{folder}: {TASKS} or {BASELINES} is damaged ({problem!r}); copy it again.") from problem
    labels = [task.label for task in tasks]
    for label in only:
        if label not in labels:
            has = ", ".join(labels)
            raise ConfigurationError(f"--tasks: {label} must be one of {has}.{suggest(label, labels)}")
    chosen = [task for task in tasks if not only or task.label in only]
    missing = [f"{task.label} ({task.file.name})" for task in chosen if not task.file.is_file()]
    if missing:
        raise DataError(
            f"{folder} lacks the data of {', '.join(missing)} below eval_data/; copy the whole bundle, or name other "
            "--tasks."
        )
    return chosen


def _task(folder: Path, entry: Mapping[str, Any], baselines: Mapping[str, float]) -> CoreTask:
    label, kind, file = str(entry["label"]), entry["icl_task_type"], folder / "eval_data" / str(entry["dataset_uri"])
    if kind not in get_args(Kind):
        raise ValueError(f"icl_task_type of {label} must be one of {', '.join(get_args(Kind))}, got {kind}")
    if not file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"task {label}: dataset_uri={entry['dataset_uri']} must be inside {folder}.")
    return CoreTask(
        label=label,
        kind=kind,
        file=file,
        num_shots=int(entry["num_fewshot"][0]),
        delimiter=str(entry.get("continuation_delimiter", " ")),
        baseline=baselines[label],
    )


def rows_of(task: CoreTask, items: Sequence[Item], index: int, *, encode: Encode, begin_id: int) -> list[ScoredRow]:
    """Return the rows of an item, each after `begin_id`, with examples drawn by the item's number before it.

    Choices share their beginning and are scored from their first difference on; contexts share their end and are scored
    on it; the continuation of a context is scored alone.
    """
    drawn = random.Random(EXAMPLE_SEED + index).sample([i for i in range(len(items)) if i != index], task.num_shots)
    before = "".join(_solved(task, items[one]) + BETWEEN for one in drawn)
    texts = [before + text for text in _texts(task, items[index])]
    if task.kind == "language_modeling":
        texts.insert(0, texts[0].removesuffix(items[index]["continuation"]).strip())
    rows = [[begin_id, *ids] for ids in encode(texts)]
    if task.kind == "language_modeling":
        return [_scored(rows[1], num_common(rows))]
    if task.kind == "multiple_choice":
        start = num_common(rows)
        return [_scored(row, start) for row in rows]
    num_shared = num_common([row[::-1] for row in rows])
    return [_scored(row, len(row) - num_shared) for row in rows]


def is_right(task: CoreTask, item: Item, scores: Sequence[RowScore]) -> bool:
    """Return whether the model's answer is the item's: by the lowest mean nats, or the likeliest ids throughout."""
    if task.kind == "language_modeling":
        return scores[0].is_likeliest
    means = [score.mean_nats for score in scores]
    return means.index(min(means)) == item["gold"]


def _solved(task: CoreTask, item: Item) -> str:
    """Return an item with its right answer, as an example."""
    return _texts(task, item)[item["gold"] if task.kind in OPTIONS else 0]


def _texts(task: CoreTask, item: Item) -> list[str]:
    """Return an item with each of its answers, or its one."""
    if task.kind == "multiple_choice":
        return [f"{item['query']}{task.delimiter}{choice}" for choice in item["choices"]]
    contexts = [item["context"].strip()] if task.kind == "language_modeling" else item["context_options"]
    return [f"{context}{task.delimiter}{item['continuation']}" for context in contexts]


def _scored(row: Sequence[int], start: int) -> ScoredRow:
    """Return a row scored from a place on: at least its last id, where two answers are alike, and never its first."""
    return ScoredRow(row, min(max(start, 1), len(row) - 1))


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
) -> Iterator[TaskScore]:
    """Yield the score of each task as it comes. `max_items` of a task at most, None: all.

    `encode` turns texts into ids without special tokens, and `begin_id` begins each row.

    Raises:
        ConfigurationError: `max_items` leaves no item after a task's examples.
        DataError: A task's file is damaged: before the first is scored.
    """
    by_task = [(task, _drawn(task, max_items)) for task in tasks]
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
        yield TaskScore(label=task.label, num_right=num_right, num_items=len(items), baseline=task.baseline)


def _drawn(task: CoreTask, max_items: int | None) -> list[Item]:
    items = task.items()
    random.Random(ORDER_SEED).shuffle(items)
    if max_items is not None and max_items <= task.num_shots:
        raise wrong("--max-items", f"above {task.num_shots}, the examples of {task.label}", max_items)
    return items[:max_items]
