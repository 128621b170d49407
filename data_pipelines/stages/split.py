"""The documents' split into training and held-out ones: decided by a hash of the document's name, for ever.

A small corpus is looked at as a whole first: where a few documents are most of it, they are cut into parts, to have
both held-out and training text. As soon as its beginning is enough, with many documents and some in every split, the
looking ahead ends: memory does not grow with the corpus.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from data_pipelines.sources.base import Document, Source
from data_pipelines.stages.stage import content_of
from lmtrain.accounting.options.ranges import require_number
from lmtrain.data.dataset_folder import notify
from lmtrain.errors import ConfigurationError, DataError

SPLITS = TRAIN, VALIDATION, TEST = "train", "validation", "test"
HASH, NAMED = "hash", "named"
SMALL_CORPUS_CHARACTERS = 64_000_000
ENOUGH_CHARACTERS = 16_000_000  # of a corpus of ENOUGH_DOCUMENTS with some in every split: look no further
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
            require_number(f"data.folder.{name}_fraction", fraction, at_least=0, below=1, usual="0.05")
        if self.validation_fraction + self.test_fraction >= 1:
            raise ConfigurationError(
                "data.folder.validation_fraction and data.folder.test_fraction: must leave text to train on, "
                f"got {self.validation_fraction} and {self.test_fraction}."
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits to fill."""
        if self.is_named:
            return TRAIN, VALIDATION
        held_out = {VALIDATION: self.validation_fraction, TEST: self.test_fraction}
        return (TRAIN, *(split for split, fraction in held_out.items() if fraction > 0))

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


def split_documents(documents: Iterable[Document], *, held_out: HeldOut) -> Iterator[tuple[str, Document]]:
    """Yield each document with its split, in order: the source's own, or by the hash of its name.

    By hash, in a corpus of up to 16 million characters, and of up to 64 million in few documents, very long ones are
    cut into parts, equal parts go to one split, and a split left empty gets the nearest document; a line is printed
    about either. In a larger one nothing but a document of more than a million characters is cut, and its parts stay
    in one split.

    Raises:
        DataError: Too little text to hold any out.
    """
    if held_out.is_named:
        for document in documents:
            for piece in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS):
                yield document.split or TRAIN, piece
        return
    documents = iter(documents)
    first: list[Document] = []
    num_characters = 0
    missing = set(held_out.splits)
    for document in documents:
        first.append(document)
        num_characters += len(content_of(document))
        if missing:
            missing.discard(held_out.split_of(document.id))
        is_varied = num_characters > ENOUGH_CHARACTERS and len(first) >= ENOUGH_DOCUMENTS and not missing
        if is_varied or num_characters > SMALL_CORPUS_CHARACTERS:
            break
    else:
        if first:
            yield from _split_small(first, num_characters=num_characters, held_out=held_out)
        return
    for document in chain(first, documents):
        split = held_out.split_of(document.id)
        for piece in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS):
            yield split, piece


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
    texts = cut(document.text, part_characters or max_characters)
    first, *others = (Document(f"{document.id}#{number}", text) for number, text in enumerate(texts))
    return [replace(first, left_out=document.left_out), *others]


def _split_small(
    documents: list[Document], *, num_characters: int, held_out: HeldOut
) -> Iterator[tuple[str, Document]]:
    part_characters = max(num_characters // PART_SHARE, MIN_PART_CHARACTERS)
    longest = max(num_characters // LARGEST_SHARE, 2 * MIN_PART_CHARACTERS)
    pieces = [
        piece
        for document in documents
        for whole in cut_if_longer(document, MAX_DOCUMENT_CHARACTERS)
        for piece in cut_if_longer(whole, longest, part_characters=part_characters)
    ]
    num_cut = sum(len(document.text) > longest for document in documents)
    if num_cut:
        notify(f"  documents of more than a tenth of the text are cut into parts, to hold some out: {num_cut:,}")
    if len(pieces) < len(held_out.splits):
        msg = f"source gives {num_characters:,} characters in {len(pieces)} documents: too little to hold any out"
        raise DataError(f"{msg}; give at least {2 * len(held_out.splits) * MIN_PART_CHARACTERS:,} characters.")
    splits = [held_out.split_of(piece.id) for piece in pieces]
    is_cut = len(pieces) > len(documents)
    if is_cut:  # whole documents stay where their names put them
        splits = _together(pieces, splits, [])
    complete, moved = _with_every_split(splits, [place_of(piece.id) for piece in pieces], held_out)
    for place in moved:
        notify(f"  no document fell into the {complete[place]} split by its hash: the nearest one is taken")
    together = _together(pieces, complete, moved) if is_cut else complete
    # A text of repetitions throughout cannot be held out and trained on unless equal parts are torn apart.
    yield from zip(together if set(together) == set(complete) else complete, pieces, strict=True)


def _together(pieces: list[Document], splits: list[str], moved: list[int]) -> list[str]:
    """Give equal parts of documents one split: that of the last moved one, else of the first."""
    of_text: dict[str, str] = {}
    for piece, split in zip(pieces, splits, strict=True):
        of_text.setdefault(piece.text, split)
    of_text |= {pieces[place].text: splits[place] for place in sorted(moved)}
    return [of_text[piece.text] for piece in pieces]


def _with_every_split(splits: list[str], places: list[float], held_out: HeldOut) -> tuple[list[str], list[int]]:
    """Return the splits with the nearest piece for each empty one, and the moved pieces."""
    by_place = sorted(range(len(places)), key=places.__getitem__)
    nearest = {VALIDATION: by_place[0], TEST: by_place[-1], TRAIN: by_place[len(by_place) // 2]}
    complete, moved = list(splits), list[int]()
    for split, index in nearest.items():
        if split in held_out.splits and split not in complete:
            complete[index] = split
            moved.append(index)
    return complete, moved


def held_out_of(source: Source, *, fractions: tuple[float, float]) -> HeldOut:
    """Return the held-out fractions, of validation and test; none where the source names its validation documents."""
    return HeldOut(0.0, 0.0, NAMED) if source.names_validation else HeldOut(*fractions)
