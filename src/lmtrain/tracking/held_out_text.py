"""A held-out text: what a score is a score of."""

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A held-out text: its source, the bytes of its split, the bytes read, the tokenizer of its tokens."""

    source: str
    split_bytes: int
    num_bytes: int
    tokenizer: str

    @property
    def text(self) -> tuple[str, int]:
        """Return the text's identity, the same for every tokenizer."""
        return self.source, self.split_bytes

    @property
    def words(self) -> str:
        """Name the text."""
        return f"{self.source} ({self.split_bytes:,} held-out bytes)"
