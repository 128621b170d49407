"""The chat tasks of nanochat's ChatCORE from local copies of their data sets, and arithmetic made by rule.

https://github.com/karpathy/nanochat, scripts/chat_eval.py: six tasks, their baselines, and the mean of the centred
accuracies. Questions are worded here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.evaluation.chat_tasks.chat_items import LetterItem, WrittenItem
from lmtrain.evaluation.chat_tasks.code_check import code_item
from lmtrain.evaluation.chat_tasks.local_copies import Row, find_files, read_rows
from lmtrain.evaluation.chat_tasks.number_answers import arithmetic_items, is_number, number_after_mark, spelling_items

WORDS_FILE: Final = "words_alpha.txt"
Items = Sequence[LetterItem] | Sequence[WrittenItem]


@final
@dataclass(frozen=True, kw_only=True)
class ChatTask:
    """A task: its items, the share of a guess, and whether it is one of ChatCORE's six."""

    label: str
    items: Items
    baseline: float = 0.0
    is_core: bool = True


@dataclass(frozen=True, kw_only=True)
class _DataSet:
    """A task's data set: its folder and part, its columns, and an item of a row."""

    folder: str
    part: str
    columns: dict[str, type]
    item: Callable[[Row], LetterItem | WrittenItem]
    baseline: float = 0.0


def _arc(row: Row) -> LetterItem:
    labels = list(row["choices"]["label"])
    return LetterItem(row["question"], list(row["choices"]["text"]), labels.index(row["answerKey"]))


def _mmlu(row: Row) -> LetterItem:
    return LetterItem(row["question"], row["choices"], row["answer"])


def _gsm8k(row: Row) -> WrittenItem:
    right = number_after_mark(row["answer"])
    if right is None:
        raise ValueError("answer has no number after ####")
    return WrittenItem(row["question"], partial(is_number, right=right))


ARC: Final = {"question": str, "choices": dict, "answerKey": str}
DATA_SETS: Final = {
    "arc_easy": _DataSet(folder="ai2_arc", part="ARC-Easy", columns=ARC, item=_arc, baseline=0.25),
    "arc_challenge": _DataSet(folder="ai2_arc", part="ARC-Challenge", columns=ARC, item=_arc, baseline=0.25),
    "mmlu": _DataSet(
        folder="mmlu",
        part="all",
        columns={"question": str, "choices": list, "answer": int},
        item=_mmlu,
        baseline=0.25,
    ),
    "gsm8k": _DataSet(folder="gsm8k", part="main", columns={"question": str, "answer": str}, item=_gsm8k),
    "humaneval": _DataSet(
        folder="openai_humaneval",
        part="openai_humaneval",
        columns={"prompt": str, "test": str, "entry_point": str},
        item=code_item,
    ),
}
SPELLING, ARITHMETIC, RUNS_CODE = "spelling", "arithmetic", "humaneval"
CORE_LABELS: Final = (*DATA_SETS, SPELLING)
LABELS: Final = (*CORE_LABELS, ARITHMETIC)


def read_tasks(folder: Path, *, only: Sequence[str] = (), may_run_code: bool = False) -> list[ChatTask]:
    """Return ChatCORE's six tasks, or `only` those named, from the copies in a folder.

    Raises:
        ConfigurationError: A task is unknown, or runs code without permission.
        DataError: A copy is missing or damaged.
    """
    labels = only or CORE_LABELS
    if unknown := [label for label in labels if label not in LABELS]:
        raise ConfigurationError(
            f"--tasks {unknown[0]} is no chat task; known: {', '.join(LABELS)}.{suggest(unknown[0], LABELS)}"
        )
    if RUNS_CODE in labels and not may_run_code:
        others = ",".join(label for label in labels if label != RUNS_CODE)
        also = f", or leave it out: --tasks {others}" if others else ""
        raise ConfigurationError(f"{RUNS_CODE} runs code written by the model; allow it with --run-code{also}.")
    return [_task(folder, label) for label in labels]


def _task(folder: Path, label: str) -> ChatTask:
    if label == ARITHMETIC:
        return ChatTask(label=label, items=arithmetic_items(), is_core=False)
    if label == SPELLING:
        return ChatTask(label=label, items=_spelling(folder))
    source = DATA_SETS[label]
    files = find_files(folder, source.folder, source.part)
    if not files:
        raise DataError(
            f"--chat {folder} has no {source.folder}/{source.part}/test*.parquet or .jsonl for {label}; copy the data "
            "set there, or name the tasks that are there with --tasks."
        )
    items: list[LetterItem | WrittenItem] = []
    for number, row in enumerate(read_rows(files, source.columns), start=1):
        try:
            items.append(source.item(row))
        except (ValueError, KeyError, TypeError) as problem:
            raise DataError(f"{files[0]} row {number} is no item of {label}: {problem}.") from problem
    return ChatTask(label=label, items=items, baseline=source.baseline)  # pyright: ignore[reportArgumentType]


def _spelling(folder: Path) -> list[WrittenItem]:
    path = folder / WORDS_FILE
    try:
        items = spelling_items(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(
            f"--chat {folder} has no {WORDS_FILE}, a word a line, for {SPELLING} ({problem}); put one there, or name "
            "other --tasks."
        ) from problem
    if not items:
        raise DataError(f"{path} has no word of three small letters or more; give it a word a line.")
    return items
