"""Published rules against pages without prose, each a stage with its paper's thresholds.

Gopher: arXiv:2112.11446, appendix A.1.1 (quality) and table A1 (repetition). C4: arXiv:1910.10683, section 2.2.
FineWeb: arXiv:2406.17557, section 3.6. A word is the text between white space; conversations pass unseen, since the
rules are about pages.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from data_pipelines.sources.base import Document, Item, Skipped
from data_pipelines.stages.stage import Stage

STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
BULLETS = ("\u2022", "\u25cf", "\u2023", "\u25aa", "\u25e6", "\u2219", "\xb7", "- ", "* ")
ELLIPSES = ("...", "\u2026")
SENTENCE_ENDS = (".", "!", "?", '"', "'", "\u201d", "\u2019", "\u3002", "\uff01", "\uff1f", "\u0964", "\u061f")
_LETTER = re.compile(r"[^\W\d_]")
_EDGE = "\"'\u201c\u201d\u2018\u2019.,;:!?()[]"


class PageRules(Stage):
    """Rules on a page's text; conversations pass."""

    def look_at(self, document: Document) -> Item:
        """Return the document, or its first broken rule."""
        reason = "" if document.messages is not None else self.reason(document.text)
        return Skipped(document.id, reason) if reason else document

    def reason(self, text: str) -> str:
        """Return the first broken rule, "" for none."""
        raise NotImplementedError


@final
@dataclass(frozen=True, kw_only=True)
class GopherQuality(PageRules):
    """Gopher's rules on the words and lines of a page.

    Symbols are `#` and ellipses, a word; stop words are English, each counted once: `min_stop_words=0` lets other
    languages pass.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_mean_word_characters: float = 3.0
    max_mean_word_characters: float = 10.0
    max_symbol_fraction: float = 0.1
    max_bullet_line_fraction: float = 0.9
    max_ellipsis_line_fraction: float = 0.3
    min_alphabetic_word_fraction: float = 0.8
    min_stop_words: int = 2

    def reason(self, text: str) -> str:
        """Return the first broken rule, "" for none."""
        words = text.split()
        return self._of_words(words) or self._of_text(text, len(words)) or self._of_language(words)

    def _of_words(self, words: list[str]) -> str:
        if len(words) < max(self.min_words, 1):
            return "gopher: too few words"
        if len(words) > self.max_words:
            return "gopher: too many words"
        mean = sum(map(len, words)) / len(words)
        if mean < self.min_mean_word_characters:
            return "gopher: short words"
        return "gopher: long words" if mean > self.max_mean_word_characters else ""

    def _of_text(self, text: str, num_words: int) -> str:
        for symbols in (text.count("#"), text.count("...") + text.count("\u2026")):
            if symbols / num_words > self.max_symbol_fraction:
                return "gopher: symbols"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if sum(line.startswith(BULLETS) for line in lines) > self.max_bullet_line_fraction * len(lines):
            return "gopher: bullet lines"
        if sum(line.endswith(ELLIPSES) for line in lines) > self.max_ellipsis_line_fraction * len(lines):
            return "gopher: ellipsis lines"
        return ""

    def _of_language(self, words: list[str]) -> str:
        alphabetic = sum(1 for word in words if _LETTER.search(word))
        if alphabetic < self.min_alphabetic_word_fraction * len(words):
            return "gopher: few alphabetic words"
        found = STOP_WORDS.intersection(word.strip(_EDGE).lower() for word in words) if self.min_stop_words else ()
        return "gopher: few stop words" if len(found) < self.min_stop_words else ""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits, under the names that folders prepared before have in theirs."""
        limits = {f"_{name}": value for name, value in vars(self).items()}
        words = limits.pop("_min_words"), limits.pop("_max_words")
        mean = limits.pop("_min_mean_word_characters"), limits.pop("_max_mean_word_characters")
        return {"stage": "gopher quality", "_words": words, "_mean_characters": mean, **limits}


@final
@dataclass(frozen=True, kw_only=True)
class C4Quality(PageRules):
    """C4's rules on whole pages; its rules on single lines, with changes of texts, are left out."""

    lorem_ipsum: bool = True
    curly_brackets: bool = True
    min_sentences: int = 3

    def reason(self, text: str) -> str:
        """Return the first broken rule, "" for none."""
        if self.lorem_ipsum and "lorem ipsum" in text.lower():
            return "c4: lorem ipsum"
        if self.curly_brackets and "{" in text:
            return "c4: curly bracket"
        num_sentences = sum(word.endswith(SENTENCE_ENDS) for word in text.split())
        return "c4: too few sentences" if num_sentences < self.min_sentences else ""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the names of the rules in force."""
        return {"stage": "c4 quality", **{f"_{name}": value for name, value in vars(self).items()}}


@final
@dataclass(frozen=True, kw_only=True)
class FineWebQuality(PageRules):
    """FineWeb's rules on the lines of a page; a punctuated line ends like a sentence."""

    min_punctuated_line_fraction: float = 0.12
    max_duplicate_line_character_fraction: float = 0.1
    max_short_line_fraction: float = 0.67
    short_line_characters: int = 30

    def reason(self, text: str) -> str:
        """Return the first broken rule, "" for none."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if not lines:
            return "empty"
        if sum(line.endswith(SENTENCE_ENDS) for line in lines) <= self.min_punctuated_line_fraction * len(lines):
            return "fineweb: few punctuated lines"
        short = sum(len(line) <= self.short_line_characters for line in lines)
        if short >= self.max_short_line_fraction * len(lines):
            return "fineweb: short lines"
        repeated = sum(map(len, lines)) - sum(map(len, set(lines)))
        if repeated >= self.max_duplicate_line_character_fraction * sum(map(len, lines)):
            return "fineweb: duplicate lines"
        return ""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits."""
        return {"stage": "fineweb quality", **{f"_{name}": value for name, value in vars(self).items()}}


_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")
TOP_PHRASES = {2: 0.20, 3: 0.18, 4: 0.16}
REPEATED_PHRASES = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@final
class GopherRepetition(PageRules):
    """Drops texts with too large a share of repetitions."""

    def __init__(
        self,
        *,
        max_duplicate_line_fraction: float = 0.30,
        max_duplicate_paragraph_fraction: float = 0.30,
        max_duplicate_line_character_fraction: float = 0.20,
        max_duplicate_paragraph_character_fraction: float = 0.20,
        max_top_phrase_fractions: Mapping[int, float] | None = None,
        max_repeated_phrase_fractions: Mapping[int, float] | None = None,
    ) -> None:
        """Drop above these fractions; phrases are limited by their number of words, in characters; None is the paper's.

        A top phrase is the most frequent one of its length, a repeated phrase any with an earlier place.
        """
        self._lines = max_duplicate_line_fraction, max_duplicate_line_character_fraction
        self._paragraphs = max_duplicate_paragraph_fraction, max_duplicate_paragraph_character_fraction
        self._top = _by_length(TOP_PHRASES if max_top_phrase_fractions is None else max_top_phrase_fractions)
        self._repeated = _by_length(
            REPEATED_PHRASES if max_repeated_phrase_fractions is None else max_repeated_phrase_fractions
        )

    def reason(self, text: str) -> str:
        """Return the first broken rule, "" for none."""
        return self._of_parts(text.strip()) or self._of_phrases(text.split())

    def _of_parts(self, text: str) -> str:
        for name, border, (most, most_characters) in (
            ("paragraphs", _PARAGRAPHS, self._paragraphs),
            ("lines", _LINES, self._lines),
        ):
            parts = border.split(text)
            once = set(parts)
            if len(parts) - len(once) > most * len(parts):
                return f"gopher: duplicate {name}"
            if sum(map(len, parts)) - sum(map(len, once)) > most_characters * len(text):
                return f"gopher: characters in duplicate {name}"
        return ""

    def _of_phrases(self, words: list[str]) -> str:
        ends = [0]
        for word in words:
            ends.append(ends[-1] + len(word))
        for num_words, most in self._top:
            if _top_characters(words, num_words) > most * ends[-1]:
                return f"gopher: top {num_words}-word phrase"
        if _all_different(words, self._repeated):
            return ""
        for num_words, most in self._repeated:
            if _repeated_characters(words, ends, num_words) > most * ends[-1]:
                return f"gopher: repeated {num_words}-word phrases"
        return ""

    def fingerprint_parts(self) -> dict[str, Any]:
        """Return the limits."""
        return {"stage": "gopher repetition", **vars(self)}


def _by_length(fractions: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple(sorted((int(num_words), fraction) for num_words, fraction in fractions.items()))


def _phrases(words: Sequence[str], num_words: int) -> Any:
    return zip(*(words[start:] for start in range(num_words)), strict=False)


def _top_characters(words: Sequence[str], num_words: int) -> int:
    """Return the characters of the most frequent phrase of `num_words` words, over all its places."""
    counts = Counter(_phrases(words, num_words))
    most = max(counts.values(), default=0)
    if most < 2:
        return 0
    return most * max(sum(map(len, phrase)) for phrase, count in counts.items() if count == most)


def _all_different(words: Sequence[str], lengths: Sequence[tuple[int, float]]) -> bool:
    """Return whether no phrase of the shortest length repeats: then no longer one does."""
    if not lengths:
        return True
    phrases = list(_phrases(words, lengths[0][0]))
    return len(set(phrases)) == len(phrases)


def _repeated_characters(words: Sequence[str], ends: Sequence[int], num_words: int) -> int:
    """Return the characters in repeated phrases, none counted twice."""
    seen: set[tuple[str, ...]] = set()
    repeated = first_free = 0
    for start, phrase in enumerate(_phrases(words, num_words)):
        if start < first_free:
            continue
        if phrase in seen:
            repeated += ends[start + num_words] - ends[start]
            first_free = start + num_words
        else:
            seen.add(phrase)
    return repeated
