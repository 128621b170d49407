"""The interface of a source of text: documents in a fixed order, and their fingerprint."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

REJECTED: Final = "rejected"  # of a pair's last turn: the answer that was not preferred


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its name, which decides its split for ever; a conversation has messages instead.

    `num_removed` characters were no text and are gone. `left_out` counts by reason the documents dropped since the one
    before; the reader of a source sets it. `known_digest` is kept by `digests.digest_of`, for hashing a content
    once. `split` is the choice of the source's settings; None leaves it to `data.folder.split`.
    """

    id: str
    text: str
    messages: tuple[Mapping[str, Any], ...] | None = None
    num_removed: int = field(default=0, compare=False)
    left_out: Mapping[str, int] | None = field(default=None, compare=False)
    known_digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    split: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place without a valid document, and the reason."""

    id: str
    reason: str


class Source(ABC):
    """A place of texts."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the first word of this source's data folders."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return, in a fraction of a second, a text that changes with the documents."""

    @abstractmethod
    def documents(self) -> Iterator[Document | Skipped]:
        """Yield the documents, in the same order every time."""

    def check(self) -> None:  # noqa: B027 (most sources have no setting that could be wrong)
        """Refuse, before any work, settings unknown to the source itself: a column, a config, a split.

        Raises:
            DataError: There is no such thing; the message lists the known ones.
        """

    @property
    def fraction_read(self) -> float | None:
        """Return how much of the source the last `documents()` has read so far, or None where nobody knows."""
        return None

    @property
    def text_bytes(self) -> int | None:
        """Return about the bytes of all its text, from sizes or a sample; None where only a reading tells them."""
        return None

    @property
    def has_conversations(self) -> bool:
        """Tell whether documents are lists of messages."""
        return False

    @property
    def names_validation(self) -> bool:
        """Tell whether the settings name the validation documents, which come first."""
        return False

    @property
    def read_once(self) -> str:
        """Return the setting to change where a second reading would cost a download of the whole, "" elsewhere."""
        return ""

    def num_pieces(self) -> int:
        """Return how many parts can be read independently of one another, by the tasks of a cluster job."""
        return 1

    def piece(self, index: int) -> Iterator[Document | Skipped]:
        """Yield the documents of one part; all parts in order are `documents()`."""
        assert index == 0, "one piece by default"
        return self.documents()
