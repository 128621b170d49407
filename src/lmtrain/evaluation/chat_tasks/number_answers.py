"""Answers that are numbers: after `####` as in GSM8K (arXiv:2110.14168), and questions for them made by rule."""

import random
import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from lmtrain.evaluation.chat_tasks.chat_items import WrittenItem
from lmtrain.tokenizers.question_forms import NUMBER_FORM, count_question

MARK: Final = re.compile(r"####\s*(-?[\d.,]+)")
SPELLING_SEED: Final = 20_001
ARITHMETIC_SEED: Final = 20_002
NUM_MADE: Final = 256  # items of a task made by rule
SHARE_INSIDE: Final = 0.9  # of questions about a letter of the word
WORD: Final = re.compile(r"[a-z]{3,}")
SIGNS: Final = {"+": "plus", "-": "minus", "*": "times"}


def number_after_mark(text: str) -> str | None:
    """Return the number after the first `####` without commas and a final point, or None."""
    found = MARK.search(text)
    return found.group(1).replace(",", "").rstrip(".") if found else None


def is_number(text: str, *, right: str) -> bool:
    """Return whether the answer's number is the right one."""
    return number_after_mark(text) == right


def spelling_items(words: Sequence[str]) -> list[WrittenItem]:
    """Return questions for the number of a letter in a word, always the same of the same words."""
    draw = random.Random(SPELLING_SEED)
    known = [word for word in words if WORD.fullmatch(word)]
    items: list[WrittenItem] = []
    for _ in range(NUM_MADE if known else 0):
        word = draw.choice(known)
        letter = draw.choice(word if draw.random() < SHARE_INSIDE else "abcdefghijklmnopqrstuvwxyz")
        question = count_question(letter, word)
        items.append(WrittenItem(question, partial(is_number, right=str(word.count(letter)))))
    return items


def arithmetic_items() -> list[WrittenItem]:
    """Return sums, differences and products of numbers of one to three digits, always the same."""
    draw = random.Random(ARITHMETIC_SEED)
    items: list[WrittenItem] = []
    for _ in range(NUM_MADE):
        sign = draw.choice(list(SIGNS))
        first, second = (draw.randrange(10 ** draw.randint(1, 2 if sign == "*" else 3)) for _ in range(2))
        result = {"+": first + second, "-": first - second, "*": first * second}[sign]
        question = f"How much is {first} {SIGNS[sign]} {second}? {NUMBER_FORM}"
        items.append(WrittenItem(question, partial(is_number, right=str(result))))
    return items
