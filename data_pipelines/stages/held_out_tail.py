"""The held-out text from the end of the reading order: training text, then validation, then test text.

The whole's number of characters decides the places, so it is counted beforehand.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from data_pipelines.sources.base import Document
from data_pipelines.stages.split import (
    MAX_DOCUMENT_CHARACTERS,
    PART_SHARE,
    TEST,
    TRAIN,
    VALIDATION,
    HeldOut,
    cut,
    good_end,
)
from data_pipelines.stages.stage import content_of


def split_tail(
    documents: Iterable[Document], *, held_out: HeldOut, num_characters: int
) -> Iterator[tuple[str, Document]]:
    """Yield each document with the split of its beginning's place among `num_characters`.

    A document of more than a hundredth of them is cut at the place itself, to a paragraph's end, a line's or a word's.
    """
    place = 0
    starts = _starts(held_out, num_characters)
    for document in documents:
        length = len(content_of(document))
        is_cut = len(document.text) * PART_SHARE > num_characters  # a conversation has no text and is never cut
        inside = [start - place for start in starts.values() if is_cut and 0 < start - place < length]
        parts = _cut_at(document, inside)
        for part in parts:
            yield _split_at(place, starts), part
            place += len(content_of(part))


def _starts(held_out: HeldOut, num_characters: int) -> dict[str, int]:
    """Return the place of each held-out split's first character, in order."""
    validation = 1 - held_out.validation_fraction - held_out.test_fraction
    starts = {VALIDATION: validation, TEST: 1 - held_out.test_fraction}
    return {split: round(starts[split] * num_characters) for split in held_out.splits if split != TRAIN}


def _split_at(place: int, starts: dict[str, int]) -> str:
    return next((split for split, start in reversed(starts.items()) if place >= start), TRAIN)


def _cut_at(document: Document, places: list[int]) -> list[Document]:
    """Return the document in parts: one ends at each place or shortly after, none is of over a million characters."""
    text, begin = document.text, 0
    parts: list[str] = []
    for place in sorted(places):
        end = good_end(text, max(place, begin), min(len(text), place + max(200, len(text) // PART_SHARE)))
        parts += cut(text[begin:end], MAX_DOCUMENT_CHARACTERS)
        begin = end
    parts = [part for part in [*parts, *cut(text[begin:], MAX_DOCUMENT_CHARACTERS)] if part]
    if len(parts) <= 1:
        return [document]
    first, *others = (Document(f"{document.id}#{number}", part) for number, part in enumerate(parts))
    return [replace(first, left_out=document.left_out), *others]
