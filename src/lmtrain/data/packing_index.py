"""A packing's index of a split, computed once and kept next to the data: the pieces of each row.

`<data folder>/packing/NAME-HASH/` holds `index.json`, and memory-mapped `row_ends.i64` (pieces up to each row's end),
`starts.i64` and `lengths.u32` (of pieces). The hash covers the tokens and the settings. Documents are
read in groups, so memory does not grow with the corpus.
"""

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.accounting.quantities import format_count
from lmtrain.data.dataset_folder import build_folder
from lmtrain.data.shards import Dataset, TokenSplit
from lmtrain.errors import DataError
from lmtrain.storage import foreign_json
from lmtrain.storage.damage import refuse_damage
from lmtrain.tokenizers.loading import load_tokenizer

ENDS_DTYPE = np.dtype("<i8")
ENDS_FILE = "document_ends.i64"
PACKING_FOLDER = "packing"  # below a data set: facts computed from its tokens, and computable again
MOST_DOCUMENTS = 1_000_000  # a larger data set's first ones stand for all
GROUP_DOCUMENTS = 1 << 20
SAMPLE_DOCUMENTS = 1000
OF_ANY_DOCUMENTS: Final = "packing=contiguous packing.document_mask=false"
LENGTHS_DTYPE = np.dtype("<u4")
INDEX_FILE = "index.json"
_VERSION = 1


def document_ends(dataset: Dataset, split: str = "train") -> NDArray[np.int64]:
    """Return where a split's documents end, memory-mapped; the ends of several shards are joined in a file, once."""
    tokens = dataset.split(split)
    if len(tokens.shard_starts) == 2:
        return tokens.shard_document_ends(0).view(ENDS_DTYPE)
    folder = dataset.folder / PACKING_FOLDER / f"document_ends-{split}-{dataset.manifest.fingerprint[:12]}"

    def write(aside: Path) -> None:
        with (aside / ENDS_FILE).open("wb") as file:
            for ends in ends_of_shards(tokens):
                file.write(ends.astype(ENDS_DTYPE, copy=False).tobytes())

    build_folder(folder, write)
    return map_file(folder / ENDS_FILE, ENDS_DTYPE)


def ends_of_shards(split: TokenSplit) -> Iterator[NDArray[np.int64]]:
    """Yield each shard's document ends, counted from the split's first id."""
    for shard, start in enumerate(split.shard_starts[:-1].tolist()):
        yield split.shard_document_ends(shard).view(ENDS_DTYPE) + start


def map_file(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a file's numbers, mapped from the disk and read when touched."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def document_lengths(dataset: Dataset, split: str = "train") -> dict[int, int]:
    """Return how many of a split's documents, of the first million, have each length in tokens."""
    ends = document_ends(dataset, split)[:MOST_DOCUMENTS]
    lengths, counts = np.unique(np.diff(ends, prepend=0), return_counts=True)
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class PackingReport:
    """Packing's effect on the documents: a document is cut where it does not lie in one row from first id to last."""

    num_documents: int
    num_tokens: int
    num_rows: int
    num_cut_documents: int
    num_tokens_after_a_cut: int
    num_dropped_tokens: int
    num_padding_tokens: int
    context_tokens: int
    end_of_text_id: int

    @property
    def cut_share(self) -> float:
        """Return the share of cut documents."""
        return self.num_cut_documents / max(self.num_documents, 1)

    @property
    def padding_share(self) -> float:
        """Return padding's share of the rows' targets."""
        return self.num_padding_tokens / max(self.num_rows * self.context_tokens, 1)

    def line(self, name: str) -> str:
        """Return one line for people."""
        said = (
            f"packing={name}: {format_count(self.num_rows, 'row')} of {self.context_tokens:,} tokens from "
            f"{format_count(self.num_documents, 'document')}; {self.cut_share:.2%} of the documents are cut "
            f"({self.num_tokens_after_a_cut / max(self.num_tokens, 1):.2%} of the tokens follow a cut), "
            f"{self.padding_share:.2%} padding"
        )
        dropped = self.num_dropped_tokens / max(self.num_tokens, 1)
        return said + (f", {dropped:.2%} of the tokens are beyond the context and dropped" if dropped else "")


def index_folder(dataset: Dataset, name: str, **settings: object) -> Path:
    """Return where a packing of a data set is kept."""
    decides = {"tokens": dataset.manifest.fingerprint, "version": _VERSION, "name": name, **settings}
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return dataset.folder / PACKING_FOLDER / f"{name}-{digest[:12]}"


def known_rows(dataset: Dataset, name: str, *, context_tokens: int) -> int | None:
    """Return the number of rows of a packing, None where its index is not built."""
    folder = index_folder(dataset, name, context_tokens=context_tokens)
    return _read_report(folder).num_rows if folder.is_dir() else None


def build_once(folder: Path, build: Callable[[Path], PackingReport]) -> PackingReport:
    """Build an index, or find it."""

    def write(aside: Path) -> None:
        report = build(aside)
        shares = {"cut_share": report.cut_share, "padding_share": report.padding_share}
        (aside / INDEX_FILE).write_text(json.dumps({**asdict(report), **shares}, indent=1) + "\n")

    build_folder(folder, write)
    return _read_report(folder)


def _read_report(folder: Path) -> PackingReport:
    with refuse_damage(folder / INDEX_FILE, fix=f"remove {folder}, and it is built again"):
        content = foreign_json.read(folder / INDEX_FILE)
        return PackingReport(**{name: content[name] for name in PackingReport.__dataclass_fields__})


def build_best_fit(split: TokenSplit, folder: Path, *, context_tokens: int) -> PackingReport:
    """Write the pieces of every row: documents of up to T tokens whole, longer ones in pieces of T and a rest."""
    num_rows = num_pieces = num_cut = num_after_cut = 0
    with (
        (folder / "row_ends.i64").open("wb") as row_ends,
        (folder / "starts.i64").open("wb") as starts,
        (folder / "lengths.u32").open("wb") as lengths,
    ):
        for document_starts, document_lengths in document_groups(split):
            cut = cut_documents(document_starts, document_lengths, context_tokens)
            row_of_piece = best_fit_decreasing(cut.lengths, capacity=context_tokens)
            order = np.argsort(row_of_piece, kind="stable")  # row by row, inside a row as in the corpus
            ends = np.cumsum(np.bincount(row_of_piece))
            row_ends.write((ends + num_pieces).astype(ENDS_DTYPE).tobytes())
            starts.write(cut.starts[order].astype(ENDS_DTYPE).tobytes())
            lengths.write(cut.lengths[order].astype(LENGTHS_DTYPE).tobytes())
            num_rows, num_pieces = num_rows + len(ends), num_pieces + len(order)
            num_cut += int((document_lengths > context_tokens).sum())
            num_after_cut += int(cut.lengths[cut.is_continued].sum())
    return packing_report(split, context_tokens, num_rows=num_rows, num_cut=num_cut, num_after_cut=num_after_cut)


def packing_report(
    split: TokenSplit, context_tokens: int, *, num_rows: int, num_cut: int, num_after_cut: int = 0, num_dropped: int = 0
) -> PackingReport:
    """Return the report of a packing of a split into rows of T tokens."""
    return PackingReport(
        num_documents=split.num_documents,
        num_tokens=split.num_tokens,
        num_rows=num_rows,
        num_cut_documents=num_cut,
        num_tokens_after_a_cut=num_after_cut,
        num_dropped_tokens=num_dropped,
        num_padding_tokens=num_rows * context_tokens - (split.num_tokens - num_dropped),
        context_tokens=context_tokens,
        end_of_text_id=end_of_text_id(split),
    )


def end_of_text_id(split: TokenSplit) -> int:
    """Return the last id of every document, judged by up to 1,000 documents, which must agree."""
    found = last_ids(split)
    if len(found) != 1:
        some = ", ".join(map(str, sorted(found)[:5]))
        raise DataError(f"packing: documents must all end with the same id, got {some}; use {OF_ANY_DOCUMENTS}.")
    return found.pop()


def last_ids(split: TokenSplit, *, within_shards: bool = False) -> set[int]:
    """Return the last ids of up to 1,000 documents; `within_shards`, without a shard's last, which it may cut."""
    found: set[int] = set()
    for shard, start in enumerate(split.shard_starts[:-1].tolist()):
        ends = split.shard_document_ends(shard)[: -1 if within_shards else None]
        for end in ends[:: max(1, len(ends) * len(split.shard_starts) // SAMPLE_DOCUMENTS)].tolist():
            found.add(int(split.window(start + end - 1, 1)[0]))
    return found


def require_end_of_text(dataset: Dataset, found: int) -> None:
    """Refuse another program's documents with a common last id other than end-of-text, such as a space."""
    if dataset.is_native:
        return
    expected = load_tokenizer(dataset.tokenizer_folder).end_of_text_id
    if found != expected:
        raise DataError(
            f"data set {dataset.folder}: documents end with id {found}, but the tokenizer's end-of-text is {expected}; "
            f"use {OF_ANY_DOCUMENTS}, or the tokenizer that the ids were made with."
        )


def require_ends(dataset: Dataset, tokens: TokenSplit) -> None:
    """Refuse another program's documents that do not end with the tokenizer's end-of-text."""
    for found in () if dataset.is_native else sorted(last_ids(tokens, within_shards=True)):
        require_end_of_text(dataset, found)


@dataclass(frozen=True)
class DocumentPieces:
    """Pieces of documents in corpus order: where each starts, its length, and whether its document began before."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    is_continued: NDArray[np.bool_]


def cut_documents(starts: NDArray[np.int64], lengths: NDArray[np.int64], context_tokens: int) -> DocumentPieces:
    """Cut documents into pieces of T tokens and a rest."""
    num_pieces = -(-lengths // context_tokens)
    first = np.cumsum(num_pieces) - num_pieces
    number = np.arange(int(num_pieces.sum())) - np.repeat(first, num_pieces)
    offsets = number * context_tokens
    left = np.repeat(lengths, num_pieces) - offsets
    return DocumentPieces(np.repeat(starts, num_pieces) + offsets, np.minimum(left, context_tokens), number > 0)


def document_groups(split: TokenSplit) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the starts and lengths of up to 2^20 documents at a time, over shards, empty ones left out."""
    start = 0
    held = np.empty(0, np.int64)
    for shard_ends in ends_of_shards(split):
        held = np.concatenate([held, shard_ends])
        while len(held) >= GROUP_DOCUMENTS:
            yield _group(start, held[:GROUP_DOCUMENTS])
            start, held = int(held[GROUP_DOCUMENTS - 1]), held[GROUP_DOCUMENTS:]
    if len(held):
        yield _group(start, held)


def _group(start: int, ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.diff(ends, prepend=start)
    kept = lengths > 0
    return (ends - lengths)[kept], lengths[kept]


def best_fit_decreasing(lengths: NDArray[np.int64], *, capacity: int) -> NDArray[np.int64]:
    """Return the bin of each item, counted from 0 in the order of opening: [N], lengths from 1 to capacity -> [N].

    The longest items go first, each into the fullest bin with room, as "Fewer Truncations Improve Language Modeling"
    (Ding et al., arXiv 2404.10830) packs documents. Equal lengths are placed together, so the work grows with the
    number of different lengths. Items of one length are placed in their own order, so the result is the same on every
    machine.
    """
    assert lengths.size == 0 or 1 <= int(lengths.min()) <= int(lengths.max()) <= capacity, capacity
    bin_of_item = np.empty(len(lengths), np.int64)
    order = np.argsort(lengths.astype(np.uint16 if capacity < 1 << 16 else np.int64), kind="stable")
    distinct, firsts, counts = np.unique(lengths[order], return_index=True, return_counts=True)
    room = _Room(capacity)
    for length, first, count in zip(distinct.tolist()[::-1], firsts.tolist()[::-1], counts.tolist()[::-1], strict=True):
        items = order[first : first + count]
        while len(items):
            bins = room.take(length, len(items))
            bin_of_item[items[: len(bins)]] = bins
            items = items[len(bins) :]
    return bin_of_item


@final
class _Room:
    """Bins by the space left in them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_bins = 0
        self._open: defaultdict[int, deque[NDArray[np.int64]]] = defaultdict(deque)
        self._spaces = 0  # bit s is set where some bin has s left

    def take(self, length: int, num_items: int) -> NDArray[np.int64]:
        """Return bins for up to `num_items` items of a length: all from the smallest fitting space, or new ones."""
        fitting = self._spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            bins = self._open[space].popleft()
            if not self._open[space]:
                self._spaces ^= 1 << space
        else:
            space = self._capacity
            num_new = -(-num_items // (space // length))
            bins = np.arange(self._num_bins, self._num_bins + num_new)
            self._num_bins += num_new
        per_bin = space // length  # once used, a bin is the fullest fitting one: it takes the next item too
        num_full, rest = divmod(min(num_items, len(bins) * per_bin), per_bin)
        self._put(bins[num_full + (rest > 0) :], space)
        self._put(bins[:num_full], space - per_bin * length)
        self._put(bins[num_full : num_full + (rest > 0)], space - rest * length)
        return np.repeat(bins[: num_full + (rest > 0)], per_bin)[: num_full * per_bin + rest]

    def _put(self, bins: NDArray[np.int64], space: int) -> None:
        if len(bins) and space:
            self._open[space].append(bins)
            self._spaces |= 1 << space
