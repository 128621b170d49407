"""Items of chat tasks: a question answered by one letter of several, or by a text to be checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from lmtrain.tokenizers.question_forms import choice_question, letters_of


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
        return letters_of(self.choices)

    @property
    def text(self) -> str:
        """Return the user's turn: the question, and each choice before its letter, for small models to bind them."""
        return choice_question(self.question, self.choices)


@final
@dataclass(frozen=True)
class WrittenItem:
    """A question whose written answer is checked."""

    text: str
    is_right: Callable[[str], bool]
