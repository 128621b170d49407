"""The texts and tasks of `lmtrain evaluate`, found and read before the model is loaded."""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.cli.commands.evaluating.flags import is_anything_asked
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from lmtrain.data.shards import Dataset
    from lmtrain.evaluation.answers import Question
    from lmtrain.evaluation.chat_tasks import ChatTask
    from lmtrain.evaluation.core import CoreTask
    from lmtrain.evaluation.harness_tasks import HarnessTasks

MADE: Final = "made_conversations"  # a source that keeps questions back
STDIN: Final = "stdin"  # the name of --text -, in its line and its metric


@dataclass(frozen=True, kw_only=True)
class EvaluationInput:
    """Tasks, texts (their names and words), questions, and prepared data."""

    tasks: "tuple[CoreTask, ...]" = ()
    chat: "tuple[ChatTask, ...]" = ()
    harness: "HarnessTasks | None" = None
    texts: tuple[tuple[str, str], ...] = ()
    asked: "tuple[Question, ...]" = ()
    dataset: "Dataset | None" = None


def read_input(asked: argparse.Namespace) -> EvaluationInput:
    """Read the inputs of the flags.

    Raises:
        ConfigurationError: There is nothing to score, or a task is unknown.
        DataError: A file is missing or damaged.
        EnvironmentProblem: A package is missing.
    """
    from lmtrain.data.shards import open_dataset

    only = tuple(asked.tasks.split(",")) if asked.tasks else ()
    read = EvaluationInput(
        tasks=_core(asked, only),
        chat=_chat(asked, only),
        harness=_harness(asked),
        texts=tuple((STDIN if str(path) == "-" else str(path), _text(path)) for path in asked.text),
        asked=tuple(_questions(asked)),
        dataset=None,
    )
    data = asked.data or (None if is_anything_asked(asked) else _own_data(asked.run))
    return read if data is None else replace(read, dataset=open_dataset(data))


def _core(asked: argparse.Namespace, only: tuple[str, ...]) -> "tuple[CoreTask, ...]":
    if asked.core is None:
        return ()
    from lmtrain.evaluation.core import read_bundle

    return tuple(read_bundle(asked.core, only=only))


def _chat(asked: argparse.Namespace, only: tuple[str, ...]) -> "tuple[ChatTask, ...]":
    if asked.chat is None:
        return ()
    from lmtrain.evaluation.chat_tasks import read_tasks

    return tuple(read_tasks(asked.chat, only=only, may_run_code=asked.run_code))


def _harness(asked: argparse.Namespace) -> "HarnessTasks | None":
    if asked.lm_eval is None:
        return None
    from lmtrain.evaluation.harness_tasks import find_tasks

    return find_tasks(
        asked.lm_eval.split(","),
        folder=asked.task_folder,
        may_run_code=asked.allow_task_code,
        num_shots=asked.num_shots,
        chat_template=asked.chat_template,
        max_items=asked.max_items,
        num_new_tokens=asked.num_new_tokens,
    )


def _questions(asked: argparse.Namespace) -> "list[Question]":
    from lmtrain.evaluation.answers import Question, read_questions

    questions = [one for path in asked.answers for one in read_questions(path)]
    if asked.made is not None:
        from lmtrain.run.compose.compose import compose_config
        from lmtrain.run.schema.node import Node

        source = Node("source", compose_config([f"source={MADE}"])["source"]).checked(()).build()
        questions += [
            Question([{"role": "user", "content": one.question}], one.answer, one.kind)
            for one in source.held_out(asked.made)
        ]
    return questions


def _text(path: Path) -> str:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except FileNotFoundError as problem:
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        near = suggest(path.name, beside)
        raise ConfigurationError(f"--text {path} cannot be read: {problem.strerror}.{near}") from problem
    except OSError as problem:
        raise DataError(f"--text {path} cannot be read: {problem.strerror}.") from problem
    except UnicodeDecodeError as problem:
        raise DataError(f"--text {path} is no UTF-8 text (byte {problem.start:,}); give plain text.") from problem
    if not text:
        raise DataError(f"--text {path} is empty; give it some text.")
    return text


def _own_data(path: Path) -> Path:
    """Return the prepared data of a run, whose held-out text is scored where nothing else is asked for."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    folder = RunFolder(run).read_identity().get("data")
    if not isinstance(folder, str):
        raise ConfigurationError(
            f"nothing to score: {path} does not say its data; give --data FOLDER, --text FILE or --core FOLDER."
        )
    if not Path(folder).is_dir():
        raise ConfigurationError(f"the data of {path} is no longer in {folder}; give --data FOLDER or --text FILE.")
    return Path(folder)
