"""Repair the characters of texts, and drop documents by their length."""

import re
from dataclasses import replace
from typing import Any, final

from data_pipelines.sources.base import Document, Item, Skipped
from data_pipelines.stages.stage import Stage, content_of, with_strings

_LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")
# Tab, newline, vertical tab and form feed are people's white space; ESC and the rest are not text.
_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufeff]")
_NO_TEXT_ASCII = bytes([*range(0x09), *range(0x0E, 0x20), 0x7F])
_SUSPECT_ASCII = b"\r" + _NO_TEXT_ASCII
_SUSPECT = re.compile(f"[\ud800-\udfff]|{_LINE_ENDS.pattern}|{_NO_TEXT.pattern}")


@final
class UnicodeRepair(Stage):
    """One kind of line end; no control characters, byte-order marks or half characters."""

    def __init__(self, *, control_characters: bool = True) -> None:
        """Remove NUL and other control characters, unless switched off."""
        self._control_characters = control_characters

    def look_at(self, document: Document) -> Item:
        """Return the document repaired, and how many characters of it were no text and are gone."""
        num_removed = 0

        def repair(text: str) -> str:
            nonlocal num_removed
            if _is_sound(text):
                return text
            text = uniform(text)
            kept = _NO_TEXT.sub("", text) if self._control_characters else text
            num_removed += len(text) - len(kept)
            return kept

        repaired = with_strings(document, repair)
        return replace(repaired, num_removed=document.num_removed + num_removed) if num_removed else repaired

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the settings."""
        return {"stage": "unicode", "control_characters": self._control_characters}


@final
class LengthFilter(Stage):
    """Drops documents shorter or longer than asked, in characters."""

    def __init__(self, *, min_characters: int = 1, max_characters: int | None = None) -> None:
        """Count characters without white space at the ends; None means no limit."""
        self._characters = min_characters, max_characters

    def look_at(self, document: Document) -> Item:
        """Return the document, or its broken limit."""
        content = content_of(document).strip()
        if not content:
            return Skipped(document.id, "empty")
        lowest, highest = self._characters
        if len(content) < lowest:
            return Skipped(document.id, "too short")
        return Skipped(document.id, "too long") if highest is not None and len(content) > highest else document

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits."""
        return {"stage": "length", "characters": list(self._characters)}


def uniform(text: str) -> str:
    """Return the text with every line end as a newline, and lone surrogates (not possible in UTF-8) as U+FFFD."""
    text = _LINE_ENDS.sub("\n", text)
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def _is_sound(text: str) -> bool:
    """Recognise most texts without damage, in a fraction of the time of a repair."""
    if text.isascii():
        return len(text.encode().translate(None, _SUSPECT_ASCII)) == len(text)
    return not _SUSPECT.search(text)
