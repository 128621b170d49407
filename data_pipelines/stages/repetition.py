"""Gopher's rules against repetitive texts: arXiv:2112.11446, table A1, thresholds and all."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

from data_pipelines.sources.base import Document, Skipped
from data_pipelines.stages.stage import Item, LooksAtEach

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")
TOP_PHRASES = {2: 0.20, 3: 0.18, 4: 0.16}
REPEATED_PHRASES = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@final
class GopherRepetition(LooksAtEach):
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

    def look_at(self, document: Document) -> Item:
        """Return the document, or its first broken rule."""
        if document.messages is not None:
            return document
        reason = self._of_parts(document.text.strip()) or self._of_phrases(document.text.split())
        return Skipped(document.id, reason) if reason else document

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
    """Return the characters of the most frequent phrase of so many words, over all its places."""
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
