"""Published rules against pages without prose, each a stage with its paper's thresholds.

Gopher: arXiv:2112.11446, appendix A.1.1 (quality) and table A1 (repetition). C4: arXiv:1910.10683, section 2.2.
FineWeb: arXiv:2406.17557, section 3.6. A word is the text between white space; conversations pass unseen, since the
rules are about pages.
"""

import re
from typing import Any, final

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.stage import Item, LooksAtEach

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
BULLETS = ("\u2022", "\u25cf", "\u2023", "\u25aa", "\u25e6", "\u2219", "\xb7", "- ", "* ")
ELLIPSES = ("...", "\u2026")
SENTENCE_ENDS = (".", "!", "?", '"', "'", "\u201d", "\u2019", "\u3002", "\uff01", "\uff1f", "\u0964", "\u061f")
_LETTER = re.compile(r"[^\W\d_]")
_EDGE = "\"'\u201c\u201d\u2018\u2019.,;:!?()[]"


@final
class GopherQuality(LooksAtEach):
    """Gopher's rules on the words and lines of a page."""

    def __init__(
        self,
        *,
        min_words: int = 50,
        max_words: int = 100_000,
        min_mean_word_characters: float = 3.0,
        max_mean_word_characters: float = 10.0,
        max_symbol_fraction: float = 0.1,
        max_bullet_line_fraction: float = 0.9,
        max_ellipsis_line_fraction: float = 0.3,
        min_alphabetic_word_fraction: float = 0.8,
        min_stop_words: int = 2,
    ) -> None:
        """Drop outside these limits; symbols are `#` and ellipses, a word; stop words are English, each counted once.

        `min_stop_words=0` lets other languages pass.
        """
        self._words = min_words, max_words
        self._mean_characters = min_mean_word_characters, max_mean_word_characters
        self._max_symbol_fraction = max_symbol_fraction
        self._max_bullet_line_fraction = max_bullet_line_fraction
        self._max_ellipsis_line_fraction = max_ellipsis_line_fraction
        self._min_alphabetic_word_fraction = min_alphabetic_word_fraction
        self._min_stop_words = min_stop_words

    def look_at(self, document: Document) -> Item:
        """Return the document, or its first broken rule."""
        if document.messages is not None:
            return document
        words = document.text.split()
        reason = self._of_words(words) or self._of_text(document.text, len(words)) or self._of_language(words)
        return Skipped(document.id, reason) if reason else document

    def _of_words(self, words: list[str]) -> str:
        if len(words) < max(self._words[0], 1):
            return "gopher: too few words"
        if len(words) > self._words[1]:
            return "gopher: too many words"
        mean = sum(map(len, words)) / len(words)
        if mean < self._mean_characters[0]:
            return "gopher: short words"
        return "gopher: long words" if mean > self._mean_characters[1] else ""

    def _of_text(self, text: str, num_words: int) -> str:
        for symbols in (text.count("#"), text.count("...") + text.count("\u2026")):
            if symbols / num_words > self._max_symbol_fraction:
                return "gopher: symbols"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if sum(line.startswith(BULLETS) for line in lines) > self._max_bullet_line_fraction * len(lines):
            return "gopher: bullet lines"
        if sum(line.endswith(ELLIPSES) for line in lines) > self._max_ellipsis_line_fraction * len(lines):
            return "gopher: ellipsis lines"
        return ""

    def _of_language(self, words: list[str]) -> str:
        alphabetic = sum(1 for word in words if _LETTER.search(word))
        if alphabetic < self._min_alphabetic_word_fraction * len(words):
            return "gopher: few alphabetic words"
        if self._min_stop_words and not self._has_stop_words(words):
            return "gopher: few stop words"
        return ""

    def _has_stop_words(self, words: list[str]) -> bool:
        found: set[str] = set()
        for word in words:
            if (bare := word.strip(_EDGE).lower()) in STOP_WORDS:
                found.add(bare)
                if len(found) >= self._min_stop_words:
                    return True
        return False

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits."""
        return {"stage": "gopher quality", **vars(self)}


@final
class C4Quality(LooksAtEach):
    """C4's rules on whole pages; its rules on single lines, with changes of texts, are left out."""

    def __init__(self, *, lorem_ipsum: bool = True, curly_brackets: bool = True, min_sentences: int = 3) -> None:
        """Drop pages with placeholder text, with a `{`, or with fewer sentences than so many."""
        self._lorem_ipsum = lorem_ipsum
        self._curly_brackets = curly_brackets
        self._min_sentences = min_sentences

    def look_at(self, document: Document) -> Item:
        """Return the document, or its first broken rule."""
        if document.messages is not None:
            return document
        text = document.text
        if self._lorem_ipsum and "lorem ipsum" in text.lower():
            return Skipped(document.id, "c4: lorem ipsum")
        if self._curly_brackets and "{" in text:
            return Skipped(document.id, "c4: curly bracket")
        if sum(1 for word in text.split() if word.endswith(SENTENCE_ENDS)) < self._min_sentences:
            return Skipped(document.id, "c4: too few sentences")
        return document

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the names of the rules in force."""
        return {"stage": "c4 quality", **vars(self)}


@final
class FineWebQuality(LooksAtEach):
    """FineWeb's rules on the lines of a page: lists, menus and repeated fragments."""

    def __init__(
        self,
        *,
        min_punctuated_line_fraction: float = 0.12,
        max_duplicate_line_character_fraction: float = 0.1,
        max_short_line_fraction: float = 0.67,
        short_line_characters: int = 30,
    ) -> None:
        """Drop pages at or beyond these limits; a punctuated line ends like a sentence."""
        self._min_punctuated_line_fraction = min_punctuated_line_fraction
        self._max_duplicate_line_character_fraction = max_duplicate_line_character_fraction
        self._max_short_line_fraction = max_short_line_fraction
        self._short_line_characters = short_line_characters

    def look_at(self, document: Document) -> Item:
        """Return the document, or its first broken rule."""
        if document.messages is not None:
            return document
        lines = [line.strip() for line in document.text.splitlines() if line.strip()]
        reason = self._reason(lines) if lines else "empty"
        return Skipped(document.id, reason) if reason else document

    def _reason(self, lines: list[str]) -> str:
        if sum(line.endswith(SENTENCE_ENDS) for line in lines) <= self._min_punctuated_line_fraction * len(lines):
            return "fineweb: few punctuated lines"
        short = sum(len(line) <= self._short_line_characters for line in lines)
        if short >= self._max_short_line_fraction * len(lines):
            return "fineweb: short lines"
        repeated = sum(map(len, lines)) - sum(map(len, set(lines)))
        if repeated >= self._max_duplicate_line_character_fraction * sum(map(len, lines)):
            return "fineweb: duplicate lines"
        return ""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits."""
        return {"stage": "fineweb quality", **vars(self)}
