"""The work of `lmtrain evaluate` for a plan, before there is a model: its text and answers, by the existing files."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.stages import EvaluationWork, RowsToScore
from lmtrain.cli.commands.evaluate_input import ANSWER_TOKENS, evaluation_parser, is_anything_asked, require_flags

if TYPE_CHECKING:
    from lmtrain.evaluation.core import CoreTask


def evaluation_work(words: Sequence[str]) -> EvaluationWork:
    """Return the work of an evaluation by its words.

    Raises:
        ConfigurationError: Wrong flags.
        DataError: An existing file is damaged.
    """
    asked = evaluation_parser("lmtrain evaluate").parse_args(list(words))
    require_flags(asked)
    rows, counted = _core(asked)
    files = [*asked.text, *asked.answers]
    missing = [f"{path} does not exist, and is not counted" for path in files if not path.is_file()]
    questions = (asked.made or 0) + sum(_num_lines(path) for path in asked.answers if path.is_file())
    length = asked.num_new_tokens or ANSWER_TOKENS
    if questions:
        counted.append(f"{format_count(questions, 'answer')} of {format_count(length, 'token')} each, at most")
    split_tokens, of_split = _split(asked)
    unknown = [f"--{flag} is not counted" for flag in ("chat", "lm-eval") if getattr(asked, flag.replace("-", "_"))]
    return EvaluationWork(
        scores_own_split=asked.data is None and not is_anything_asked(asked),
        split_tokens=split_tokens,
        text_bytes=sum(path.stat().st_size for path in asked.text if path.is_file()),
        rows=rows,
        num_answers=questions,
        answer_tokens=length,
        prompt_bytes=sum(path.stat().st_size for path in asked.answers if path.is_file()),
        is_bf16=asked.precision == "bf16",
        counted=tuple(counted),
        uncounted=(*missing, *of_split, *unknown),
    )


def _split(asked: argparse.Namespace) -> tuple[int, list[str]]:
    """Return the tokens of prepared data to be scored, or a line if it does not exist."""
    if asked.data is None:
        return 0, []
    if not asked.data.is_dir():
        return 0, [f"{asked.data} does not exist, and is not counted"]
    from lmtrain.data.shards import open_dataset

    dataset = open_dataset(asked.data)
    split = asked.split or ("test" if "test" in dataset.splits else "validation")
    return dataset.split(split).num_tokens, []


def _core(asked: argparse.Namespace) -> tuple[list[RowsToScore], list[str]]:
    """Return the rows of CORE's tasks by their text, or those of nanochat's bundle if the folder does not exist."""
    if asked.core is None:
        return [], []
    only = tuple(asked.tasks.split(",")) if asked.tasks else ()
    if asked.core.is_dir():
        from lmtrain.evaluation.core import read_bundle

        rows = [_rows(task, asked.max_items) for task in read_bundle(asked.core, only=only)]
        return rows, [f"CORE: {_counted(rows)}, by their text in {asked.core}"]
    from lmtrain.evaluation.core import CORE_SIZES

    sizes = [size for label, size in CORE_SIZES.items() if not only or label in only]
    rows = [RowsToScore(num_rows=min(items, asked.max_items or items) * each) for items, each in sizes]
    where = f"{asked.core} does not exist, numbers of nanochat's bundle"
    return rows, [f"CORE: {_counted(rows)}, each as long as the context at most ({where})"]


def _counted(rows: Sequence[RowsToScore]) -> str:
    total = sum(task.num_rows for task in rows)
    return f"{format_count(len(rows), 'task')}, {format_count(total, 'row')} of a question with one answer"


def _rows(task: "CoreTask", max_items: int | None) -> RowsToScore:
    """Return the rows of a task: each choice of a question after the examples, of the task's mean length."""
    items = task.items()
    num_items = min(len(items), max_items or len(items))
    rows = sum(_num_rows(item) for item in items) / len(items) * num_items
    of_item = sum(_text_bytes(item) for item in items) / len(items)
    return RowsToScore(num_rows=round(rows), text_bytes=rows * of_item * (1 + task.num_shots))


def _num_rows(item: Mapping[str, Any]) -> int:
    return len(item.get("choices") or item.get("context_options") or [""])


def _text_bytes(item: Mapping[str, Any]) -> float:
    """Return the bytes of an item with one of its choices."""
    texts = [value for value in item.values() if isinstance(value, str)]
    several = [value for value in item.values() if isinstance(value, list)]
    one_of = [len(text.encode()) / len(texts_of) for texts_of in several for text in map(str, texts_of)]
    return sum(len(text.encode()) for text in texts) + sum(one_of)


def _num_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(bool(line.strip()) for line in file)
