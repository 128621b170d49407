"""The flags of `lmtrain evaluate`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lmtrain.cli.commands.model_flags import add_model
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flag_parser import FlagParser

BATCH_TOKENS: Final = 16_384
ANSWER_TOKENS: Final = 100
COUNTS: Final = ("context_tokens", "batch_tokens", "max_items", "made", "num_new_tokens")
# Flags of another, necessary one: the flag, those it may belong to, and their names for people.
BELONGS: Final = (
    ("tasks", ("core", "chat"), "--core FOLDER or --chat FOLDER"),
    ("max_items", ("core", "chat", "lm_eval"), "--core FOLDER, --chat FOLDER or --lm-eval TASKS"),
    ("run_code", ("chat",), "--chat FOLDER"),
    ("task_folder", ("lm_eval",), "--lm-eval TASKS"),
    ("allow_task_code", ("task_folder",), "--task-folder FOLDER"),
    ("num_shots", ("lm_eval",), "--lm-eval TASKS"),
    ("chat_template", ("lm_eval",), "--lm-eval TASKS"),
    ("num_new_tokens", ("answers", "made", "chat", "lm_eval"), "--answers, --made, --chat or --lm-eval"),
)

# The settings of a kind of score, by the first word of its name.
SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "evaluation": ("precision",),
    "core": ("precision", "max_items"),
    "chat": ("precision", "max_items", "num_new_tokens"),
    "lm_eval": ("precision", "max_items", "num_new_tokens", "num_shots", "chat_template"),
    "answers": ("precision", "num_new_tokens"),
}


def settings_of(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the settings of a score: the flags beside its model and its text."""
    return {flag: getattr(asked, flag) for flag in SETTINGS[name.partition("/")[0]]}


def require_flags(asked: argparse.Namespace) -> None:
    """Refuse a number below 1, and a flag whose subject is not asked for.

    Raises: ConfigurationError for the first one.
    """
    for flag in COUNTS:
        if (value := getattr(asked, flag)) is not None and value < 1:
            raise ConfigurationError(f"--{flag.replace('_', '-')} {value} is below 1; nearest valid: 1.")
    if asked.num_shots is not None and asked.num_shots < 0:
        raise ConfigurationError(f"--num-shots {asked.num_shots} is below 0; nearest valid: 0.")
    for flag, owners, names in BELONGS:
        if getattr(asked, flag) not in (None, False, "") and not any(getattr(asked, owner) for owner in owners):
            raise ConfigurationError(f"--{flag.replace('_', '-')} is of {names}, which is not given; give it.")
    if asked.tasks and asked.core and asked.chat:
        raise ConfigurationError("--tasks is of --core or of --chat, and both are given; score one at a time.")
    if asked.split and asked.data is None and is_anything_asked(asked):
        raise ConfigurationError(f"--split {asked.split} is of --data FOLDER, which is not given; give it.")


def is_anything_asked(asked: argparse.Namespace) -> bool:
    """Tell whether anything but prepared data is to be scored."""
    return bool(asked.core or asked.chat or asked.lm_eval or asked.text or asked.answers or asked.made)


def evaluation_parser(program: str) -> FlagParser:
    """Return the parser of the command line."""
    parser = FlagParser(
        prog=program,
        usage="%(prog)s [OPTION ...] run",
        description="Score a model: bits per byte of its run's test split, or as asked for below.",
    )
    add_model(parser)
    _add_texts(parser.add_argument_group("bits per byte").add_argument)
    _add_benchmarks(parser.add_argument_group("benchmarks").add_argument)
    _add_answers(parser.add_argument_group("answers with one right text").add_argument)
    add = parser.add_argument
    add("--num-new-tokens", type=int, metavar="N", help="of an answer at most (100; --chat 256; lm-eval the task's)")
    add("--batch-tokens", type=int, default=BATCH_TOKENS, metavar="N", help=f"read at once ({BATCH_TOKENS})")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="of the products (fp32)")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _add_texts(add: Callable[..., object]) -> None:
    add("--data", type=Path, metavar="FOLDER", help="of prepared data, by the model's own tokenizer")
    add("--split", help="of the data (test where there is one, else validation)")
    add("--text", type=Path, action="append", default=[], metavar="FILE", help="of a text; - reads it; repeatable")
    add("--context-tokens", type=int, metavar="N", help="of a window of text (as in training)")


def _add_benchmarks(add: Callable[..., object]) -> None:
    add("--core", type=Path, metavar="FOLDER", help="CORE: the tasks of an unpacked eval_bundle.zip")
    add("--chat", type=Path, metavar="FOLDER", help="ChatCORE: ARC, MMLU, GSM8K, HumanEval and spelling, from copies")
    add("--tasks", metavar="A,B", help="of --core or --chat (all); --chat has arithmetic too")
    add("--run-code", action="store_true", help="let humaneval run the model's code, in a limited process")
    add("--lm-eval", metavar="A,B", help="tasks of the Language Model Evaluation Harness")
    add("--task-folder", type=Path, metavar="FOLDER", help="of YAML files of tasks for --lm-eval")
    add("--allow-task-code", action="store_true", help="let the files of --task-folder run code")
    add("--num-shots", type=int, metavar="N", help="examples before each item of --lm-eval (the task's)")
    add("--chat-template", action="store_true", help="ask --lm-eval's tasks as conversations")
    add("--max-items", type=int, metavar="N", help="of each task at most (all)")


def _add_answers(add: Callable[..., object]) -> None:
    asked = "conversations, their last turn asked for"
    add("--answers", type=Path, action="append", default=[], metavar="FILE", help=asked)
    add("--made", type=int, metavar="N", help="questions kept out of source=made_conversations")
