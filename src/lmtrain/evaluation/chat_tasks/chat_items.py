"""Items of chat tasks: a question answered by one letter of several, or by a text to be checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import final


@final
@dataclass(frozen=True)
class LetterItem:
    """A question whose choices have letters; `gold` is the place of the right one."""

    question: str
    choices: Sequence[str]
    gold: int

    @property
    def letters(self) -> str:
        """Return a letter for each choice."""
        return ascii_uppercase[: len(self.choices)]

    @property
    def text(self) -> str:
        """Return the user's turn: the question, and each choice before its letter, for small models to bind them."""
        lines = "".join(f"{choice} = {letter}\n" for choice, letter in zip(self.choices, self.letters, strict=True))
        return f"{self.question}\n\n{lines}\nAnswer with one letter."


@final
@dataclass(frozen=True)
class WrittenItem:
    """A question whose written answer is checked."""

    text: str
    is_right: Callable[[str], bool]
