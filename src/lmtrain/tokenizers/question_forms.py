"""The wording of made questions, the same where a model learns them and where it is asked."""

from collections.abc import Sequence
from string import ascii_uppercase
from typing import Final

NUMBER_FORM: Final = "Write the number after ####."


def letters_of(choices: Sequence[str]) -> str:
    """Return a letter for each choice."""
    return ascii_uppercase[: len(choices)]


def choice_question(question: str, choices: Sequence[str]) -> str:
    """Return a question with each choice before its letter, for small models to bind them."""
    lines = "".join(f"{choice} = {letter}\n" for choice, letter in zip(choices, letters_of(choices), strict=True))
    return f"{question}\n\n{lines}\nAnswer with one letter."


def count_question(letter: str, word: str) -> str:
    """Return a question for the number of a letter in a word."""
    return f"How many {letter} are in {word}? {NUMBER_FORM}"
