"""The interface of a source of text: documents in a fixed order, and their fingerprint."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmtrain.errors import DataError
from lmtrain.tokenizers.conversation import ConversationError, read_conversation

OnBadRow = Literal["skip", "error"]


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its name, which decides its split for ever; a conversation has messages instead.

    Cleaning removed `num_removed` characters. `left_out` counts by reason the documents dropped since the one before.
    `split` is set by the source; None leaves it to a hash of `id`.
    """

    id: str
    text: str
    messages: tuple[Mapping[str, Any], ...] | None = None
    num_removed: int = field(default=0, compare=False)
    left_out: Mapping[str, int] | None = field(default=None, compare=False)
    split: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place without a valid document, and the reason."""

    id: str
    reason: str


Item = Document | Skipped


class Source(ABC):
    """A place of texts.

    `name` is the first part of the name of its data folders. `has_conversations`: documents are lists of messages.
    `names_validation`: the settings name the validation documents, which come first. `fraction_read` is how
    much of it the last `documents()` has read so far; None where it is unknown.
    """

    name: str
    has_conversations: bool = False
    names_validation: bool = False
    fraction_read: float | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Return, in a fraction of a second, a text that changes with the documents."""

    @abstractmethod
    def documents(self) -> Iterator[Item]:
        """Yield the documents, in the same order every time."""

    def check(self) -> None:  # noqa: B027 (most sources have no setting that could be wrong)
        """Refuse, before any work, settings that do not fit the source: a column, a config, a split."""

    def num_pieces(self) -> int:
        """Return how many parts can be read independently of one another, by the tasks of a cluster job."""
        return 1

    def piece(self, index: int) -> Iterator[Item]:
        """Yield the documents of one part; all parts in order are `documents()`."""
        assert index == 0, "one piece by default"
        return self.documents()


def asked(question: str, answer: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a question and its answer as messages."""
    return {"role": "user", "content": question}, {"role": "assistant", "content": answer}


def document_of(row_id: str, content: str | tuple[Mapping[str, Any], ...] | ConversationError) -> Item:
    """Return a row's content as a document, or its reason."""
    if isinstance(content, ConversationError):
        return Skipped(row_id, content.rule)
    return Document(row_id, content) if isinstance(content, str) else Document(row_id, "", content)


def require_good(item: Item, on_bad_row: OnBadRow) -> Item:
    """Refuse a row without a document, where `on_bad_row` is "error"."""
    if on_bad_row != "error":
        return item
    if isinstance(item, Document) and item.messages is not None:
        try:
            read_conversation(item.messages)
        except ConversationError as problem:
            item = Skipped(item.id, problem.rule)
    if isinstance(item, Skipped):
        raise DataError(f"{item.id}: {item.reason}; correct the row, or set source.on_bad_row=skip.")
    return item
