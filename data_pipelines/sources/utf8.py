"""Bytes to text: a few stray bytes become U+FFFD and are counted, anything more is no text."""

from typing import final

MAX_INVALID_FRACTION = 0.01


@final
class Utf8:
    """Decodes, and remembers how many sequences it had to replace and where the first was."""

    def __init__(self) -> None:
        """Begin with nothing replaced."""
        self.num_replaced = 0
        self.first: str | None = None

    def decode(self, content: bytes, *, where: str) -> str:
        """Return the text of bytes in UTF-8, but for a few of them.

        Raises:
            ValueError: They are no text; the message says why.
        """
        if b"\0" in content:
            raise ValueError("has NUL bytes (binary, or UTF-16)")
        try:
            return content.decode()
        except UnicodeDecodeError:
            num_invalid = count_invalid(content)
        if num_invalid > MAX_INVALID_FRACTION * len(content):
            raise ValueError(f"has {num_invalid:,} invalid sequences in {len(content):,} bytes")
        self.num_replaced += num_invalid
        self.first = self.first or where
        return content.decode(errors="replace")

    def note(self) -> str | None:
        """Return a line about replaced bytes, or None without any."""
        if not self.num_replaced:
            return None
        return f"  places that are not UTF-8 and became U+FFFD: {self.num_replaced:,}, the first in {self.first}"


def count_invalid(content: bytes) -> int:
    """Return how many sequences of these bytes are not UTF-8."""
    return content.decode(errors="replace").count("\ufffd") - content.count("\ufffd".encode())
