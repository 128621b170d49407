"""The documents' split into training and held-out ones: decided by a hash of the document's name, for ever.

A small corpus is looked at as a whole first: where a few documents are most of it, they are cut into parts, to have
both held-out and training text. As soon as its beginning is enough, with many documents and some in every split, the
looking ahead ends: memory does not grow with the corpus.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from data_pipelines.progress import stage, tell
from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.deduplicate import digest_of
from data_pipelines.stages.stage import content_of
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, DataError, suggest

SPLITS = TRAIN, VALIDATION, TEST = "train", "validation", "test"
RULES = HASH, TAIL, NAMED = "hash", "tail", "named"
SMALL_CORPUS_CHARACTERS = 64_000_000
ENOUGH_CHARACTERS = 16_000_000  # of a corpus of so many documents, with some in every split: look no further
ENOUGH_DOCUMENTS = 1_000
LARGEST_SHARE = 10  # in a small corpus no document may be more than a tenth of it;
PART_SHARE = 100  # one that is gets cut into hundredths of the whole
MIN_PART_CHARACTERS = 200
MAX_DOCUMENT_CHARACTERS = 1_000_000
TWENTY = 20
FINE = 1 << 40


@dataclass(frozen=True)
class HeldOut:
    """The held-out fractions of the documents, and the rule of their choice; by name they are the source's."""

    validation_fraction: float
    test_fraction: float
    rule: str = HASH

    def __post_init__(self) -> None:
        """Refuse fractions without a rest to train on."""
        for name, fraction in (("validation", self.validation_fraction), ("test", self.test_fraction)):
            if not 0 <= fraction < 1:
                msg = f"data.folder.{name}_fraction={fraction} is not a fraction of the documents; usual: 0.05."
                raise ConfigurationError(msg)
        held_out = self.validation_fraction + self.test_fraction
        if held_out >= 1:
            msg = f"data.folder.validation_fraction + data.folder.test_fraction = {held_out} leaves nothing to train on"
            raise ConfigurationError(f"{msg}; usual: 0.05 each.")

    @property
    def fractions(self) -> dict[str, float]:
        """Return each split's share of the documents."""
        train = 1 - self.validation_fraction - self.test_fraction
        return {TRAIN: train, VALIDATION: self.validation_fraction, TEST: self.test_fraction}

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits to fill."""
        if self.is_named:
            return TRAIN, VALIDATION
        return tuple(split for split, fraction in self.fractions.items() if fraction > 0)

    @property
    def is_named(self) -> bool:
        """Return whether the source says which documents are for validation, and fractions do not count."""
        return self.rule == NAMED

    def split_of(self, document_id: str) -> str:
        """Return the split of a document: one does not move when the other fraction changes."""
        place = place_of(document_id)
        if place < self.validation_fraction:
            return VALIDATION
        return TEST if place >= 1 - self.test_fraction else TRAIN


def split_documents(
    documents: Iterable[Document], *, held_out: HeldOut, tell: Callable[[str], object]
) -> Iterator[tuple[str, Document]]:
    """Yield each document with its split, in order.

    In a corpus of up to 16 million characters, and of up to 64 million in few documents, very long ones are cut into
    parts, equal parts go to one split, and a split left empty by the hash gets the nearest document; `tell` prints
    a line about either. In a larger one nothing but a document of more than a million characters is cut, and its
    parts stay in one split.

    Raises:
        DataError: Too little text to hold any out.
    """
    documents = iter(documents)
    first: list[Document] = []
    num_characters, is_large = 0, False
    missing = set(held_out.splits)
    for document in documents:
        first.append(document)
        num_characters += len(content_of(document))
        if missing:
            missing.discard(held_out.split_of(document.id))
        is_varied = num_characters > ENOUGH_CHARACTERS and len(first) >= ENOUGH_DOCUMENTS and not missing
        is_large = is_varied or num_characters > SMALL_CORPUS_CHARACTERS
        if is_large:
            break
    if is_large:
        for document in chain(_taken(first), documents):
            split = held_out.split_of(document.id)
            for piece in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS):
                yield split, piece
    elif first:
        yield from _split_small(first, num_characters=num_characters, held_out=held_out, tell=tell)


def place_of(document_id: str) -> float:
    """Return where in [0, 1) the hash of a name falls.

    The first of TWENTY parts is `sha256(name) % 20 == 0`: with the usual fraction of 0.05, a rule of one line, for
    comparing other programs on the same held-out documents.
    """
    digest = int.from_bytes(hashlib.sha256(document_id.encode(errors="surrogatepass")).digest(), "big")
    rest, part = divmod(digest, TWENTY)
    return (part + rest % FINE / FINE) / TWENTY


def cut(text: str, num_characters: int) -> list[str]:
    """Return the text in parts of about `num_characters`, each to a paragraph's end, else a line's, else a word's."""
    parts: list[str] = []
    start = 0
    while len(text) - start > 3 * num_characters // 2:
        end = good_end(text, start + num_characters, start + 3 * num_characters // 2)
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


def good_end(text: str, earliest: int, latest: int) -> int:
    """Return the end of a paragraph between two places, else of a line, else of a word, else the first place."""
    for border in ("\n\n", "\n", " "):
        found = text.find(border, earliest, latest)
        if found >= 0:
            return found + len(border)
    return earliest


def cut_if_longer(document: Document, max_characters: int, *, part_characters: int | None = None) -> list[Document]:
    """Return the document, or its parts under numbered names where it is longer."""
    if len(document.text) <= max_characters:  # a conversation has no text and is never cut
        return [document]
    parts = cut(document.text, part_characters or max_characters)
    first, *others = (Document(f"{document.id}#{number}", part) for number, part in enumerate(parts))
    return [replace(first, left_out=document.left_out), *others]


def _split_small(
    documents: list[Document], *, num_characters: int, held_out: HeldOut, tell: Callable[[str], object]
) -> Iterator[tuple[str, Document]]:
    part_characters = max(num_characters // PART_SHARE, MIN_PART_CHARACTERS)
    longest = max(num_characters // LARGEST_SHARE, 2 * MIN_PART_CHARACTERS)
    pieces_of = [
        [
            piece
            for whole in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS)
            for piece in cut_if_longer(whole, longest, part_characters=part_characters)
        ]
        for document in documents
    ]
    pieces = [*chain.from_iterable(pieces_of)]
    too_long = [
        len(parts) for document, parts in zip(documents, pieces_of, strict=True) if len(document.text) > longest
    ]
    if too_long:
        parts = f"{len(too_long):,} into {sum(too_long):,}"
        tell(f"  documents of more than a tenth of the text are cut into parts, so that some can be held out: {parts}")
    if len(pieces) < len(held_out.splits):
        msg = f"source gives {num_characters:,} characters in {len(pieces)} documents: too little to hold any out"
        raise DataError(f"{msg}; give at least {2 * len(held_out.splits) * MIN_PART_CHARACTERS:,} characters.")
    splits = _together(pieces, [held_out.split_of(piece.id) for piece in pieces], len(documents))
    complete = _with_every_split(splits, [place_of(piece.id) for piece in pieces], held_out)
    for split in sorted(set(complete) - set(splits)):
        tell(f"  no document fell into the {split} split by its hash: the nearest one is taken")
    together = _together(pieces, complete, len(documents), moved_from=splits)
    # A text of repetitions throughout cannot be held out and trained on unless equal parts are torn apart.
    yield from zip(together if set(together) == set(complete) else complete, pieces, strict=True)


def _together(
    pieces: list[Document], splits: list[str], num_documents: int, *, moved_from: list[str] | None = None
) -> list[str]:
    """Give equal parts of documents one split: that of the first, or the one with a moved part."""
    if len(pieces) == num_documents:
        return splits  # nothing was cut, and whole documents stay where their names put them
    of_text: dict[str, str] = {}
    for piece, split, before in zip(pieces, splits, moved_from or splits, strict=True):
        if split != before:
            of_text[piece.text] = split
        else:
            of_text.setdefault(piece.text, split)
    return [of_text[piece.text] for piece in pieces]


def _taken(documents: list[Document]) -> Iterator[Document]:
    """Yield the documents of a list and let go of each."""
    documents.reverse()
    while documents:
        yield documents.pop()


def _with_every_split(splits: list[str], places: list[float], held_out: HeldOut) -> list[str]:
    by_place = sorted(range(len(places)), key=places.__getitem__)
    nearest = {VALIDATION: by_place[0], TEST: by_place[-1], TRAIN: by_place[len(by_place) // 2]}
    complete = list(splits)
    for split, index in nearest.items():
        if split in held_out.splits and split not in complete:
            complete[index] = split
    return complete


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


Read = Callable[[], Iterable[Document]]
TYPED_RULES: Final = (HASH, TAIL)


def held_out_of(source: Source, rule: str, *, fractions: tuple[float, float], budget: int | None = None) -> HeldOut:
    """Return the held-out fractions, of validation and test, under a rule fit for the source and the budget.

    Raises:
        ConfigurationError: An unknown rule, or one that needs the end of a text that is not read to its end, or not
        read twice.
    """
    if rule not in TYPED_RULES:
        fix = suggest(rule, TYPED_RULES)
        raise ConfigurationError(f"data.folder.split={rule} is not {' or '.join(TYPED_RULES)}.{fix}")
    if rule == HASH:
        if source.names_validation:
            return HeldOut(0.0, 0.0, NAMED)
        return HeldOut(*fractions)
    nearest = f"nearest valid: data.folder.split={HASH}"
    if source.names_validation:
        msg = f"data.folder.split={rule} has no effect with source.validation_paths"
        raise ConfigurationError(f"{msg}; leave one out, {nearest}.")
    if budget is not None:
        msg = f"data.folder.split={rule} is the end of the text, and a budget of {budget:,} tokens stops before it"
        raise ConfigurationError(f"{msg} (budget.tokens, data.folder.token_budget); {nearest}.")
    if source.read_once:
        msg = f"data.folder.split={rule} reads the text twice, and source {source.name} streams from the hub"
        raise ConfigurationError(f"{msg}; set {source.read_once}, or {nearest}.")
    return HeldOut(*fractions, rule)


def split_by_rule(read: Read, measure: Read, *, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Yield each document of `read` with its split, in order; `measure` gives the same to look ahead in."""
    return _SPLITTERS[held_out.rule](read, measure, held_out)


def _by_hash(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    del measure
    return split_documents(read(), held_out=held_out, tell=tell)


def _by_place(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    num_characters = 0
    with stage("measure the text") as progress:
        for document in measure():
            num_characters += len(content_of(document))
            progress.advance(documents=1)
    yield from split_tail(read(), held_out=held_out, num_characters=num_characters)


def _as_named(read: Read, measure: Read, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Follow the source; report training documents with the content of a validation document."""
    del measure, held_out
    held_out_digests: set[bytes] = set()
    num_leaks = 0
    for document in read():
        if document.split is not None:
            held_out_digests.add(digest_of(document))
        elif digest_of(document) in held_out_digests:
            num_leaks += 1
        for piece in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS):
            yield document.split or TRAIN, piece
    if num_leaks:
        fix = "deduplicate=exact takes them out of the training text"
        tell(f"  {format_count(num_leaks, 'training document')} equal to one of source.validation_paths: {fix}")


_SPLITTERS: Final[Mapping[str, Callable[[Read, Read, HeldOut], Iterator[tuple[str, Document]]]]] = {
    HASH: _by_hash,
    TAIL: _by_place,
    NAMED: _as_named,
}
