"""Questions with one right answer each: their file of JSON lines, and accuracies by kind.

Each score comes with that of a guess: always the commonest answer.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.data.named_files import read_named_rows
from lmtrain.data.row_shapes import RowShape
from lmtrain.data.text_files import Reading
from lmtrain.errors import DataError
from lmtrain.evaluation.core import TaskScore
from lmtrain.tokenizers.conversation import ConversationError, read_conversation

ALL: Final = "all"  # kinds together


@dataclass(frozen=True)
class Question:
    """A question's messages, up to a user's turn; its right answer, and the name of its kind."""

    messages: Sequence[Mapping[str, str]]
    answer: str
    kind: str = "answers"


@dataclass(frozen=True)
class Answered:
    """A model's text, and whether the model ended it."""

    text: str
    is_ended: bool


@dataclass(frozen=True, kw_only=True)
class AnswerScore(TaskScore):
    """The answers to one kind of question, its label; `num_commonest` have the commonest right answer."""

    num_ended: int
    num_commonest: int
    baseline: float = 0.0

    @property
    def ended(self) -> float:
        """Return the share of answers ended by the model itself."""
        return self.num_ended / self.num_items

    @property
    def guess(self) -> float:
        """Return the accuracy of a model that always gives the commonest answer."""
        return self.num_commonest / self.num_items


def score_answers(asked: Sequence[Question], answered: Sequence[Answered]) -> list[AnswerScore]:
    """Return a score for each kind in the order of their first question, then one of all where there are several.

    An answer is right where it is the right text, without the spaces around it, and ended.
    """
    kinds = list(dict.fromkeys(one.kind for one in asked))
    pairs = list(zip(asked, answered, strict=True))
    by_kind = [_score(kind, [pair for pair in pairs if pair[0].kind == kind]) for kind in kinds]
    return by_kind if len(kinds) == 1 else [*by_kind, _score(ALL, pairs)]


def _score(kind: str, pairs: Sequence[tuple[Question, Answered]]) -> AnswerScore:
    (_, commonest), *_ = Counter(asked.answer.strip() for asked, _ in pairs).most_common(1)
    return AnswerScore(
        label=kind,
        num_right=sum(answer.is_ended and answer.text.strip() == asked.answer.strip() for asked, answer in pairs),
        num_ended=sum(answer.is_ended for _, answer in pairs),
        num_items=len(pairs),
        num_commonest=commonest,
    )


def read_questions(path: Path) -> list[Question]:
    """Return the question and answer of each row: a conversation as any source has it, and its `kind`, if it has one.

    Raises:
        ConfigurationError: The file does not exist.
        DataError: A row is not a conversation that ends in an assistant's turn with text.
    """
    shape, found = RowShape("conversation"), list[Question]()
    for row_id, row in read_named_rows(path, {*shape.wanted, "kind"}, flag="--answers"):
        messages = shape.content(row, Reading())
        try:
            if isinstance(messages, ConversationError):
                raise messages
            found.append(_question(messages, row.get("kind")))
        except (ValueError, ConversationError) as problem:
            raise DataError(f"--answers: {row_id}: {problem}") from problem
    if not found:
        raise DataError(f"--answers: {path} is empty.")
    return found


def _question(messages: Any, kind: object) -> Question:
    *asked, last = messages
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str) or not last["content"].strip():
        raise ValueError("must end in an assistant's turn with text, the right answer.")
    read_conversation(asked, for_answer=True)
    if kind == ALL:
        raise ValueError(f'"kind" must not be "{ALL}", which names all kinds together.')
    return Question(asked, last["content"], "answers" if kind is None else str(kind))
