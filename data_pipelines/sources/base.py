"""What every source of text gives: documents in a fixed order, and a fingerprint of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """A text and the name that decides, for ever, to which split it belongs; a conversation has messages instead.

    `num_removed` characters were no text and are gone. `left_out` counts by reason what went since the document before
    it; whoever reads a source sets it. `known_digest` is kept by `digests.digest_of`, so that a content
    is hashed once. `split` is the one that the source's settings name for it; None leaves it to `data.folder.split`.
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
    """Something that should have been a document, and why it is not."""

    id: str
    reason: str


class Source(ABC):
    """A place that texts come from."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the word that data folders of this source begin with."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return, in a fraction of a second, what changes when the documents change."""

    @abstractmethod
    def documents(self) -> Iterator[Document | Skipped]:
        """Yield the documents, in the same order every time."""

    def check(self) -> None:  # noqa: B027 (most sources have no setting that could be wrong)
        """Refuse, before any work, settings that the source itself shows to be wrong: a column, a config, a split.

        Raises:
            DataError: There is no such thing; the message lists what there is.
        """

    @property
    def fraction_read(self) -> float | None:
        """Return how much of the source the last `documents()` has read so far, or None where nobody knows."""
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
