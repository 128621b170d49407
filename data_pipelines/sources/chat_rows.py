"""Rows of public data sets as conversations, and conversations about the letters of words, made by rule.

MMLU (arXiv:2009.03300), GSM8K (arXiv:2110.14168), in the layout of their repositories.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from data_pipelines.sources.base import Document, Skipped
from lmtrain.tokenizers.question_forms import choice_question, count_question, letters_of

CALCULATION: Final = re.compile(r"<<.*?>>")  # GSM8K's notes for a calculator
WORD: Final = re.compile(r"[a-z]{3,}")
SHARE_INSIDE: Final = 0.9  # of questions about a letter of the word
Messages = tuple[Mapping[str, Any], ...]


def of_choices(row: Mapping[str, Any]) -> Messages | str:
    """Return a question of several choices and its letter as the answer, or why there is none."""
    question, choices, answer = row.get("question"), row.get("choices"), row.get("answer")
    if not isinstance(question, str) or not isinstance(choices, Sequence) or not isinstance(answer, int):
        return "no question, choices and answer"
    if not 0 <= answer < len(choices):
        return "an answer that is none of the choices"
    return _asked(choice_question(question, list(choices)), letters_of(choices)[answer])


def of_calculation(row: Mapping[str, Any]) -> Messages | str:
    """Return a question and its written way to a number after ####, or why there is none."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        return "no question and answer"
    return _asked(question, CALCULATION.sub("", answer))


def of_messages(row: Mapping[str, Any]) -> Messages | str:
    """Return the messages of a row, or why there are none."""
    messages = row.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        return "no messages"
    return tuple(messages)


def spelled(words: Sequence[str], *, num_rows: int, seed: int) -> Iterator[Document | Skipped]:
    """Yield words to be spelled, letter by letter."""
    draw = random.Random(f"spelling/{seed}")
    for number in range(num_rows):
        word = draw.choice(words)
        yield Document(f"spelling:{number}", "", messages=_asked(f"Spell the word {word}.", ", ".join(word)))


def counted(words: Sequence[str], *, num_rows: int, seed: int) -> Iterator[Document | Skipped]:
    """Yield letters to be counted in words: the answer spells, counts, and gives the number after ####."""
    draw = random.Random(f"counting/{seed}")
    for number in range(num_rows):
        word = draw.choice(words)
        letter = draw.choice(word if draw.random() < SHARE_INSIDE else "abcdefghijklmnopqrstuvwxyz")
        places = [f"{place} {one}{'*' * (one == letter)}" for place, one in enumerate(word, start=1)]
        answer = f"{', '.join(places)}. #### {word.count(letter)}"
        yield Document(f"counting:{number}", "", messages=_asked(count_question(letter, word), answer))


def _asked(question: str, answer: str) -> Messages:
    return ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
