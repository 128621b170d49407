"""Scores of answers with one right text each, by kind, beside the commonest answer as a guess."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ALL: Final = "all"  # kinds together


@dataclass(frozen=True)
class Question:
    """A question's messages, up to a user's turn; its right answer, and the name of its kind."""

    messages: Sequence[Mapping[str, str]]
    answer: str
    kind: str = "answers"


@dataclass(frozen=True)
class Answered:
    """A model's text, and whether it ended it by itself."""

    text: str
    is_ended: bool


@dataclass(frozen=True, kw_only=True)
class AnswerScore:
    """The answers to one kind of question; `num_commonest` have the commonest right answer."""

    kind: str
    num_right: int
    num_ended: int
    num_items: int
    num_commonest: int

    @property
    def accuracy(self) -> float:
        """Return the share of right answers."""
        return self.num_right / self.num_items

    @property
    def standard_error(self) -> float:
        """Return the accuracy's standard error from the number of items."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.num_items)

    @property
    def ended(self) -> float:
        """Return the share of answers ended by the model itself."""
        return self.num_ended / self.num_items

    @property
    def guess(self) -> float:
        """Return the accuracy of whoever always gives the commonest answer."""
        return self.num_commonest / self.num_items


def score_answers(asked: Sequence[Question], answered: Sequence[Answered]) -> list[AnswerScore]:
    """Return a score for each kind in the order of their first question, then one of all where there are several.

    An answer is right where it is the right text but for spaces around it, and ended.
    """
    kinds = list(dict.fromkeys(one.kind for one in asked))
    pairs = list(zip(asked, answered, strict=True))
    by_kind = [_score(kind, [pair for pair in pairs if pair[0].kind == kind]) for kind in kinds]
    return by_kind if len(kinds) == 1 else [*by_kind, _score(ALL, pairs)]


def _score(kind: str, pairs: Sequence[tuple[Question, Answered]]) -> AnswerScore:
    (_, commonest), *_ = Counter(asked.answer.strip() for asked, _ in pairs).most_common(1)
    return AnswerScore(
        kind=kind,
        num_right=sum(answer.is_ended and answer.text.strip() == asked.answer.strip() for asked, answer in pairs),
        num_ended=sum(answer.is_ended for _, answer in pairs),
        num_items=len(pairs),
        num_commonest=commonest,
    )
