"""The flags of `lmtrain evaluate`, and the texts and tasks that they name, read before the model is loaded."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.cli.commands.model_flags import add_json, add_model
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from lmtrain.data.shards import Dataset
    from lmtrain.evaluation.answers import Question
    from lmtrain.evaluation.chat_tasks import ChatTask
    from lmtrain.evaluation.core import CoreTask

BATCH_TOKENS: Final = 16_384
ANSWER_TOKENS: Final = 100
MADE: Final = "made_conversations"  # a source that keeps questions back
COUNTS: Final = {"context_tokens": 1, "batch_tokens": 1, "max_items": 1, "made": 1, "num_new_tokens": 1, "num_shots": 0}
# Flags that need another one: the flag, and those of which one is necessary.
NEEDS: Final = {
    "tasks": ("core", "chat"),
    "max_items": ("core", "chat", "lm_eval"),
    "task_folder": ("lm_eval",),
    "allow_task_code": ("task_folder",),
    "num_shots": ("lm_eval",),
    "chat_template": ("lm_eval",),
    "num_new_tokens": ("answers", "made", "chat", "lm_eval"),
}


@dataclass(frozen=True, kw_only=True)
class EvaluationInput:
    """What is scored: tasks, texts (their names and contents), questions, and prepared data."""

    tasks: "list[CoreTask]"
    chat: "list[ChatTask]"
    harness: "TaskManager | None"
    texts: list[tuple[str, list[str]]]
    questions: "list[Question]"
    dataset: "Dataset | None"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def require_flags(asked: argparse.Namespace) -> None:
    """Refuse a number that is too small, and a flag without the one that it needs."""
    for name, least in COUNTS.items():
        if (value := getattr(asked, name)) is not None and value < least:
            raise ConfigurationError(f"{_flag(name)}: must be {least} or more, got {value}.")
    for name, owners in NEEDS.items():
        if getattr(asked, name) not in (None, False, "") and not any(getattr(asked, owner) for owner in owners):
            raise ConfigurationError(f"{_flag(name)} needs {' or '.join(map(_flag, owners))}; add it.")
    if asked.tasks and asked.core and asked.chat:
        raise ConfigurationError("--tasks is for --core or for --chat, and both are given; score one at a time.")
    if asked.split and asked.data is None and is_anything_asked(asked):
        raise ConfigurationError(f"--split {asked.split} needs --data FOLDER; add it.")


def is_anything_asked(asked: argparse.Namespace) -> bool:
    """Report whether anything but prepared data is to be scored."""
    return bool(asked.core or asked.chat or asked.lm_eval or asked.text or asked.answers or asked.made)


def evaluation_parser(program: str) -> FlagParser:
    """Return the parser of the command line."""
    parser = FlagParser(
        prog=program,
        usage="%(prog)s [OPTION ...] run",
        description="Score a model: bits per byte of its run's test split, or what the flags below ask for.",
    )
    add_model(parser)
    add = parser.add_argument_group("bits per byte").add_argument
    add("--data", type=Path, metavar="FOLDER", help="prepared data, with the model's own tokenizer")
    add("--split", help="of the data (test if there is one, else validation)")
    add("--text", type=Path, action="append", default=[], metavar="FILE", help="a text; - is stdin; repeatable")
    add("--context-tokens", type=int, metavar="N", help="of a window of text (as in training)")
    add = parser.add_argument_group("benchmarks").add_argument
    add("--core", type=Path, metavar="FOLDER", help="CORE: the tasks of an unpacked eval_bundle.zip")
    add("--chat", type=Path, metavar="FOLDER", help="ARC, MMLU, GSM8K and spelling as conversations, from copies")
    add("--tasks", metavar="A,B", help="of --core or --chat (all)")
    add("--lm-eval", metavar="A,B", help="tasks of the Language Model Evaluation Harness")
    add("--task-folder", type=Path, metavar="FOLDER", help="YAML files of tasks for --lm-eval, which can run code")
    add("--allow-task-code", action="store_true", help="let the files of --task-folder run code")
    add("--num-shots", type=int, metavar="N", help="examples before each item of --lm-eval (the task's)")
    add("--chat-template", action="store_true", help="ask --lm-eval's tasks as conversations")
    add("--max-items", type=int, metavar="N", help="of each task at most (all)")
    add = parser.add_argument_group("answers with one right text").add_argument
    answers = "conversations whose last turn is the expected answer"
    add("--answers", type=Path, action="append", default=[], metavar="FILE", help=answers)
    add("--made", type=int, metavar="N", help="questions kept out of source=made_conversations")
    add = parser.add_argument
    add("--num-new-tokens", type=int, metavar="N", help="of an answer at most (100; --chat 256; lm-eval the task's)")
    add("--batch-tokens", type=int, default=BATCH_TOKENS, metavar="N", help=f"read at once ({BATCH_TOKENS})")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the matrix products (fp32)")
    add_json(parser)
    return parser


def read_input(asked: argparse.Namespace) -> EvaluationInput:
    """Read what the flags ask for, before the model is loaded."""
    from lmtrain.data.shards import open_dataset
    from lmtrain.evaluation.answers import read_questions
    from lmtrain.evaluation.chat_tasks import read_tasks
    from lmtrain.evaluation.core import read_bundle
    from lmtrain.evaluation.harness_tasks import find_tasks

    only = tuple(asked.tasks.split(",")) if asked.tasks else ()
    data = asked.data or (None if is_anything_asked(asked) else _own_data(asked.run))
    harness = asked.lm_eval.split(",") if asked.lm_eval else []
    return EvaluationInput(
        tasks=read_bundle(asked.core, only=only) if asked.core else [],
        chat=read_tasks(asked.chat, only=only) if asked.chat else [],
        harness=find_tasks(harness, folder=asked.task_folder, may_run_code=asked.allow_task_code) if harness else None,
        texts=[("stdin" if str(path) == "-" else str(path), _texts(path)) for path in asked.text],
        questions=[*(one for path in asked.answers for one in read_questions(path)), *_made(asked.made or 0)],
        dataset=None if data is None else open_dataset(data),
    )


def _made(num: int) -> "list[Question]":
    """Return questions that source=made_conversations keeps out of its training text."""
    if not num:
        return []
    from lmtrain.evaluation.answers import Question
    from lmtrain.run.compose.compose import compose_config
    from lmtrain.run.schema.node import Node

    source = Node("source", compose_config([f"source={MADE}"])["source"]).checked(()).build()
    return [Question([{"role": "user", "content": one.question}], one.answer, one.kind) for one in source.held_out(num)]


def _texts(path: Path) -> list[str]:
    from lmtrain.data.named_files import read_texts

    if str(path) != "-":
        return read_texts(path, flag="--text")
    if not (text := sys.stdin.read()):
        raise DataError("--text - is empty; write some text to it.")
    return [text]


def _own_data(path: Path) -> Path:
    """Return the prepared data of a run, whose held-out text is scored if nothing else is asked for."""
    run = path.parent.parent if path.parent.name == "checkpoints" else path
    folder = RunFolder(run).read_identity().get("data")
    if not isinstance(folder, str) or not Path(folder).is_dir():
        raise ConfigurationError(
            f"nothing to score: the data of {path} is not there; give --data FOLDER, --text FILE or --core FOLDER."
        )
    return Path(folder)
