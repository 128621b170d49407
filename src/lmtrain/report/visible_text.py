"""Text of a model or a person without what would command a terminal or break a page."""

from unicodedata import category

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    """Replace unprintable characters, spaces of other widths aside: a model may write any byte."""
    return "".join(c if c.isprintable() or c in "\n\t" or category(c) == "Zs" else REPLACEMENT for c in text)
