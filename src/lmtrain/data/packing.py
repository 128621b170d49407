"""How documents become rows of T + 1 ids to train on.

A document's end-of-text id is also the next one's beginning: as an input it belongs to the next document, at position
0, and predicts the first id there. So every row of `BestFit` and `OneDocument` starts with an end-of-text id, and with
a document mask no target has to be left out: each id is predicted from its own document.
`N rows, B of them, T context tokens, P pieces`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lmtrain.accounting.options.parts import PackingFacts
from lmtrain.data.gather import Blocks
from lmtrain.data.packing_index import (
    ENDS_DTYPE,
    ENDS_FILE,
    LENGTHS_DTYPE,
    PackingReport,
    build_best_fit,
    build_once,
    build_one_document,
    document_ends,
    index_folder,
    map_file,
    require_end_of_text,
    require_ends,
)
from lmtrain.data.rows import DocumentSpans, LocatedRows, PieceReader, RowBatch, Rows, ShardPieces, document_spans
from lmtrain.data.shards import Dataset, TokenSplit
from lmtrain.data.windows import ContiguousRows, DocumentWindows, HeldOutWindows, evaluation_windows
from lmtrain.errors import DataError

LONG_BLOCK = 512


class Packing(Protocol):
    """How rows to train on, and windows to measure on, are made."""

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Make rows of the train split, once for the same data and context."""
        ...

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a held-out split, up to its first `max_tokens` tokens, into windows of the same kind."""
        ...

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Return the tokens of all rows once, padding included."""
        ...

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares cut and padded, or None where there are none."""
        ...


def contiguous_facts(*, document_mask: bool = False) -> PackingFacts:
    """Describe its held-out windows."""
    return PackingFacts(holds_out_whole_documents=document_mask)


@dataclass(frozen=True, kw_only=True)
class Contiguous:
    """Windows w x T to w x T + T of all documents back to back."""

    document_mask: bool = False

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Cut the train split into windows.

        Raises:
            DataError: Documents are to be masked, and do not end with end-of-text.
        """
        split = dataset.split("train")
        if self.document_mask:
            require_ends(dataset, split)
        return ContiguousRows(
            split,
            context_tokens=context_tokens,
            fingerprint=dataset.manifest.fingerprint,
            document_ends=document_ends(dataset) if self.document_mask else None,
        )

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a split at any place, or into whole documents with a document mask."""
        return held_out_windows(
            dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=self.document_mask
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Return the tokens of the text."""
        del context_tokens
        return dataset.split("train").num_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return None: windows are cut anywhere and not padded."""
        del dataset, context_tokens
        return None


class _IndexedPacking:
    """A packing that keeps an index of its rows next to the data."""

    index_name: ClassVar[str]

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Find or build the index."""
        return self._index(dataset, context_tokens)[0].num_rows * context_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares of cut documents and of padding."""
        return self._index(dataset, context_tokens)[0].line(self.index_name)

    def _index(self, dataset: Dataset, context_tokens: int) -> tuple[PackingReport, Path]:
        folder = index_folder(dataset, self.index_name, context_tokens=context_tokens)
        split = dataset.split("train")
        report = build_once(folder, lambda aside: self._build(split, aside, context_tokens))
        require_end_of_text(dataset, report.end_of_text_id)
        return report, folder

    @abstractmethod
    def _build(self, split: TokenSplit, folder: Path, context_tokens: int) -> PackingReport: ...


def best_fit_facts(*, document_mask: bool = False, of_conversations: bool = False) -> PackingFacts:
    """Name its index, and describe its held-out windows and whether it takes text."""
    return PackingFacts(
        holds_out_whole_documents=document_mask, index="best_fit", needs_conversations=of_conversations
    )


@dataclass(frozen=True, kw_only=True)
class BestFit(_IndexedPacking):
    """Whole documents in rows as full as possible; those longer than T are cut into pieces of T and a rest.

    `of_conversations` refuses plain text, where every token would carry loss.
    """

    index_name: ClassVar[str] = "best_fit"
    document_mask: bool = False
    of_conversations: bool = False

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Find or build the index.

        Raises:
            DataError: It is plain text, and conversations are required.
        """
        split = dataset.split("train")
        if self.of_conversations and not split.has_loss_mask:
            raise DataError(
                f"{dataset.folder} is text without loss marks, and packing=conversations trains only on the "
                "assistant's tokens; name conversations, or train on all tokens with task=pretrain."
            )
        report, folder = self._index(dataset, context_tokens)
        return BestFitRows(
            RowBuilder(split, context_tokens=context_tokens, end_of_text_id=report.end_of_text_id),
            row_ends=map_file(folder / "row_ends.i64", ENDS_DTYPE),
            starts=map_file(folder / "starts.i64", ENDS_DTYPE),
            lengths=map_file(folder / "lengths.u32", LENGTHS_DTYPE),
            fingerprint=f"{dataset.manifest.fingerprint}:best_fit:{context_tokens}",
            document_mask=self.document_mask,
        )

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a split at any place, or into whole documents with a document mask."""
        return held_out_windows(
            dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=self.document_mask
        )

    def _build(self, split: TokenSplit, folder: Path, context_tokens: int) -> PackingReport:
        return build_best_fit(split, folder, context_tokens=context_tokens)


def one_document_facts() -> PackingFacts:
    """Describe its rows and its held-out windows."""
    return PackingFacts(holds_out_whole_documents=True, row_is_document=True)


@dataclass(frozen=True, kw_only=True)
class OneDocument(_IndexedPacking):
    """The first T tokens of one document, then padding."""

    index_name: ClassVar[str] = "document"

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Make a row of each document."""
        report, folder = self._index(dataset, context_tokens)
        return OneDocumentRows(
            RowBuilder(
                dataset.split("train"), context_tokens=context_tokens, end_of_text_id=report.end_of_text_id
            ),
            document_ends=map_file(folder / ENDS_FILE, ENDS_DTYPE),
            context_tokens=context_tokens,
            fingerprint=f"{dataset.manifest.fingerprint}:document:{context_tokens}",
        )

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a split into whole documents."""
        return held_out_windows(dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=True)

    def _build(self, split: TokenSplit, folder: Path, context_tokens: int) -> PackingReport:
        return build_one_document(split, folder, context_tokens=context_tokens)


def held_out_windows(
    dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None, are_whole: bool
) -> HeldOutWindows:
    """Cut a split into whole documents, or at any place.

    Raises:
        DataError: Whole documents do not end with end-of-text.
    """
    tokens = dataset.split(split)
    if not are_whole:
        return evaluation_windows(tokens, context_tokens=context_tokens, max_tokens=max_tokens)
    require_ends(dataset, tokens)
    ends = document_ends(dataset, split)
    return DocumentWindows(tokens, context_tokens=context_tokens, document_ends=ends, max_tokens=max_tokens)


@final
class RowBuilder:
    """Makes rows of pieces of documents: an end-of-text id, the pieces back to back, and end-of-text ids as padding.

    The end-of-text id before a piece belongs to that piece as an input. Padding carries no loss.
    """

    def __init__(self, split: TokenSplit, *, context_tokens: int, end_of_text_id: int) -> None:
        """Describe a split; nothing is opened yet."""
        self.reader = PieceReader(split)
        self.dtype = split.dtype
        self.has_loss_mask = split.has_loss_mask
        self.context_tokens = context_tokens
        self.end_of_text_id = end_of_text_id

    def locate(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        num_pieces: NDArray[np.int64],
        *,
        document_mask: bool,
    ) -> LocatedRows:
        """Find the places of rows [N], made of pieces [P], `num_pieces` [N] to each row."""
        num_rows, num_tokens = len(num_pieces), self.context_tokens
        row_of_piece = np.repeat(np.arange(num_rows), num_pieces)
        stops = np.cumsum(lengths)
        last_piece = np.cumsum(num_pieces) - 1
        stops -= np.repeat(np.concatenate(([0], stops[last_piece[:-1]])), num_pieces)  # now from the row's start
        targets = row_of_piece * num_tokens + stops - lengths
        documents = None
        if document_mask:
            inside = stops < num_tokens
            documents = document_spans(stops[inside], row_of_piece[inside], (num_rows, num_tokens))
        marks = self.reader.locate(starts, lengths, targets) if self.has_loss_mask else None
        pieces = self.reader.locate(starts, lengths, targets + row_of_piece + 1)
        ids = self.reader.blocks(pieces, usual_length=min(num_tokens, LONG_BLOCK))
        return _BuiltRows(self, ids=ids, marks=marks, documents=documents, num_targets=stops[last_piece])


@final
class _BuiltRows:
    def __init__(
        self,
        builder: RowBuilder,
        *,
        ids: list[Blocks],
        marks: ShardPieces | None,
        documents: DocumentSpans | None,
        num_targets: NDArray[np.int64],
    ) -> None:
        self._builder = builder
        self._ids = ids
        self._marks = marks
        self._documents = documents
        self._num_targets = num_targets
        # A view of every possible mask: the k-th has k zeros at its end. Copying a row of it is twice as fast as a
        # comparison with the row's length.
        self._masks = sliding_window_view(
            np.arange(2 * builder.context_tokens) < builder.context_tokens, builder.context_tokens
        )

    def read(self, first: int, last: int) -> RowBatch:
        """Read rows `first` to `last`: [B, T + 1]."""
        builder, num_tokens = self._builder, self._builder.context_tokens
        ids = np.full((last - first, num_tokens + 1), builder.end_of_text_id, builder.dtype)
        builder.reader.read_ids(self._ids, first * (num_tokens + 1), ids)
        loss_mask = self._masks[num_tokens - self._num_targets[first:last]]
        if self._marks is not None:
            builder.reader.read_mask(self._marks, first * num_tokens, loss_mask.view(np.uint8))
        documents = None if self._documents is None else self._documents.read(first, last)
        return RowBatch(ids, documents, loss_mask)


@final
class BestFitRows:
    """The rows of a best-fit index."""

    def __init__(
        self,
        builder: RowBuilder,
        *,
        row_ends: NDArray[np.int64],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        fingerprint: str,
        document_mask: bool,
    ) -> None:
        """Read pieces [starts, starts + lengths), up to `row_ends` of them in the rows up to each row's end."""
        self.num_rows = len(row_ends)
        self.fingerprint = fingerprint
        self._builder = builder
        self._row_ends = row_ends
        self._starts = starts
        self._lengths = lengths
        self._document_mask = document_mask

    def locate(self, rows: NDArray[np.int64]) -> LocatedRows:
        """Find the places of rows [N]."""
        stops = self._row_ends[rows]
        firsts = np.where(rows > 0, self._row_ends[rows - 1], 0)
        counts = stops - firsts
        pieces = np.arange(int(counts.sum())) + np.repeat(stops - np.cumsum(counts), counts)
        lengths = self._lengths[pieces].astype(np.int64)
        return self._builder.locate(self._starts[pieces], lengths, counts, document_mask=self._document_mask)


@final
class OneDocumentRows:
    """A row a document."""

    def __init__(
        self, builder: RowBuilder, *, document_ends: NDArray[np.int64], context_tokens: int, fingerprint: str
    ) -> None:
        """Read the first `context_tokens` ids of each document."""
        self.num_rows = len(document_ends)
        self.fingerprint = fingerprint
        self._builder = builder
        self._ends = document_ends
        self._context_tokens = context_tokens

    def locate(self, rows: NDArray[np.int64]) -> LocatedRows:
        """Find the places of rows [N]."""
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        lengths = np.minimum(self._ends[rows] - starts, self._context_tokens)
        return self._builder.locate(starts, lengths, np.ones_like(rows), document_mask=False)
