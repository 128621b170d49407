"""What every source of text gives: documents in a fixed order, and a fingerprint of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """A text and the name that decides, for ever, to which split it belongs."""

    id: str
    text: str


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
