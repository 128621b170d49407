"""The chat tasks of nanochat's ChatCORE from local copies of their data sets.

https://github.com/karpathy/nanochat, scripts/chat_eval.py: its tasks but HumanEval, which runs a model's code; their
baselines, and the mean of the centred accuracies. A question is answered by one letter of several, the likeliest, or by
a written text with the right number after `####` as in GSM8K (arXiv:2110.14168). The wording of the questions is ours.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from lmtrain.data.named_files import read_named_rows
from lmtrain.errors import ConfigurationError, DataError, suggest
from lmtrain.evaluation.core import TaskScore
from lmtrain.inference.chat import answer_all, chat_format
from lmtrain.inference.generation import Request
from lmtrain.inference.loaded_model import LoadedModel
from lmtrain.inference.sampling import Sampling
from lmtrain.storage.damage import refuse_damage
from lmtrain.tokenizers.question_forms import choice_question, count_question, letters_of

Row = Mapping[str, Any]

ORDER_SEED: Final = 1337
WORDS_FILE: Final = "words_alpha.txt"
MARK: Final = re.compile(r"####\s*(-?[\d.,]+)")
SPELLING_SEED: Final = 20_001
NUM_MADE: Final = 256  # items of a task made by rule
SHARE_INSIDE: Final = 0.9  # of the questions ask for a letter of the word
LETTER_BIAS: Final = 200.0  # lifts a question's letters above any other token, in fp32 to 2e-5 of a logit
WORD: Final = re.compile(r"[a-z]{3,}")


@final
@dataclass(frozen=True)
class Item:
    """A user's turn and its right answer: one of `letters`, or without them the number after `####`."""

    text: str
    right: str
    letters: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class ChatTask:
    """A task: its items, and the accuracy of a guess."""

    label: str
    items: Sequence[Item]
    baseline: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _DataSet:
    """A task's data set: its folder and part, its columns, and an item of a row."""

    folder: str
    part: str
    columns: tuple[str, ...]
    item: Callable[[Row], Item]
    baseline: float = 0.0


def _choice(question: str, choices: Sequence[str], gold: int) -> Item:
    """Return a question with each choice before its letter, which helps small models."""
    letters = letters_of(choices)
    return Item(choice_question(question, choices), letters[gold], letters)


def _arc(row: Row) -> Item:
    choices = row["choices"]
    return _choice(row["question"], list(choices["text"]), list(choices["label"]).index(row["answerKey"]))


def _gsm8k(row: Row) -> Item:
    right = number_after_mark(row["answer"])
    if right is None:
        raise ValueError("answer has no number after ####")
    return Item(row["question"], right)


ARC: Final = ("question", "choices", "answerKey")
DATA_SETS: Final = {
    "arc_easy": _DataSet(folder="ai2_arc", part="ARC-Easy", columns=ARC, item=_arc, baseline=0.25),
    "arc_challenge": _DataSet(folder="ai2_arc", part="ARC-Challenge", columns=ARC, item=_arc, baseline=0.25),
    "mmlu": _DataSet(
        folder="mmlu",
        part="all",
        columns=("question", "choices", "answer"),
        item=lambda row: _choice(row["question"], row["choices"], row["answer"]),
        baseline=0.25,
    ),
    "gsm8k": _DataSet(folder="gsm8k", part="main", columns=("question", "answer"), item=_gsm8k),
}
SPELLING: Final = "spelling"
LABELS: Final = (*DATA_SETS, SPELLING)


def read_tasks(folder: Path, *, only: Sequence[str] = ()) -> list[ChatTask]:
    """Return the five tasks, or `only` those named, from the copies in a folder."""
    labels = only or LABELS
    if unknown := [label for label in labels if label not in LABELS]:
        raise ConfigurationError(
            f"--tasks: must be among {', '.join(LABELS)}, got {unknown[0]}.{suggest(unknown[0], LABELS)}"
        )
    return [_task(folder, label) for label in labels]


def _task(folder: Path, label: str) -> ChatTask:
    if label == SPELLING:
        return ChatTask(label=label, items=_spelling(folder))
    source = DATA_SETS[label]
    places = (folder / source.folder / source.part, folder / source.folder)
    files = (sorted(place.glob("test*")) for place in places)
    items: list[Item] = []
    for path in next(filter(None, files), []):
        for where, row in read_named_rows(path, source.columns, flag=f"--chat: {path.parent}"):
            with refuse_damage(f"--chat: {path.parent}: {where}, an item of {label},", fix="copy the data set again"):
                items.append(source.item(row))
    if not items:
        raise DataError(
            f"--chat: {folder} has no {source.folder}/{source.part}/test*.parquet or .jsonl with rows for {label}; "
            "copy the data set there, or name other --tasks."
        )
    return ChatTask(label=label, items=items, baseline=source.baseline)


def _spelling(folder: Path) -> list[Item]:
    try:
        return spelling_items((folder / WORDS_FILE).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError, IndexError) as problem:  # without a word of three letters
        raise DataError(f"--chat: {folder} has no {WORDS_FILE} for {SPELLING} ({problem}).") from problem


def score_task(loaded: LoadedModel, task: ChatTask, *, num_new_tokens: int, max_items: int | None = None) -> TaskScore:
    """Score a task, or `max_items` of it drawn by a fixed seed, with written answers of at most `num_new_tokens`."""
    items = list(task.items)
    random.Random(ORDER_SEED).shuffle(items)
    items = items[:max_items]
    if items[0].letters:
        num_right = _num_right_letters(loaded, items)
    else:
        answers = answer_all(loaded, [_turn(item.text) for item in items], num_new_tokens=num_new_tokens)
        pairs = zip(items, answers, strict=True)
        num_right = sum(number_after_mark(answer.text) == item.right for item, answer in pairs)
    return TaskScore(label=task.label, num_right=num_right, num_items=len(items), baseline=task.baseline)


def _num_right_letters(loaded: LoadedModel, items: Sequence[Item]) -> int:
    """Count the questions whose likeliest letter is the right one."""
    style, encode = chat_format(loaded), loaded.tokenizer.encode
    before = encode(f"{style.space}A")[:-1]  # a letter's last id follows these, a byte's space among them
    letters = [{one: encode(style.space + one)[-1] for one in item.letters} for item in items]
    requests = [
        Request(
            prompt=[*style.prompt(_turn(item.text)), *before],
            num_new_tokens=1,
            sampling=Sampling(temperature=0.0, logit_bias=dict.fromkeys(of_item.values(), LETTER_BIAS)),
            slides=True,
        )
        for item, of_item in zip(items, letters, strict=True)
    ]
    answered = zip(loaded.engine().write(requests), letters, items, strict=True)
    return sum(answer.new_tokens == [of_item[item.right]] for answer, of_item, item in answered)


def _turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def number_after_mark(text: str) -> str | None:
    """Return the number after the first `####` without commas and a final point, or None."""
    found = MARK.search(text)
    return found.group(1).replace(",", "").rstrip(".") if found else None


def spelling_items(words: Sequence[str]) -> list[Item]:
    """Return questions for the number of a letter in a word, always the same of the same words."""
    draw = random.Random(SPELLING_SEED)
    known = [word for word in words if WORD.fullmatch(word)]
    items: list[Item] = []
    for _ in range(NUM_MADE):
        word = draw.choice(known)
        letter = draw.choice(word if draw.random() < SHARE_INSIDE else "abcdefghijklmnopqrstuvwxyz")
        question = count_question(letter, word)
        items.append(Item(question, str(word.count(letter))))
    return items
