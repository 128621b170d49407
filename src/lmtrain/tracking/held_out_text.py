"""A held-out text: what a score is a score of."""

from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = "unknown"
WHOLE: Final = 0.999  # of a text: all of it but its first token, predicted by nothing
ASSISTANT: Final = "the assistant's words"


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A held-out text: its source, the bytes of its split, the bytes scored, the tokenizer of its tokens.

    Of conversations `is_assistant`: the bytes scored are the assistant's words, those of its split all turns.
    """

    source: str
    split_bytes: int
    num_bytes: int
    tokenizer: str
    is_assistant: bool = False

    @property
    def text(self) -> tuple[str, int, bool]:
        """Return the text's identity, the same for every tokenizer."""
        return self.source, self.split_bytes, self.is_assistant

    @property
    def words(self) -> str:
        """Name the text, with the bytes scored where they are a part of it."""
        if self.is_assistant or 0 < self.num_bytes < WHOLE * self.split_bytes:
            return f"{self.source} ({self.read_words} held-out bytes)"
        return f"{self.source} ({self.split_bytes:,} held-out bytes)"

    @property
    def read_words(self) -> str:
        """Name the bytes scored beside those of the split."""
        whose = f"{ASSISTANT}, " if self.is_assistant else ""
        return f"{whose}{self.num_bytes:,} of {self.split_bytes:,}"
