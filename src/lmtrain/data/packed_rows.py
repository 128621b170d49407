"""Rows made of pieces of documents: an end-of-text id, the pieces back to back, and end-of-text ids as padding.

Each piece is preceded by an end-of-text id, the row's first or the last of the document before; as an input it belongs
to the piece. Padding carries no loss. `N rows, B of them, T context tokens, P pieces`.
"""

from typing import final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from lmtrain.data.gather import Blocks
from lmtrain.data.rows import DocumentSpans, LocatedRows, PieceReader, ShardPieces, RowBatch, document_spans
from lmtrain.data.shards import TokenSplit

LONG_BLOCK = 512


@final
class RowBuilder:
    """Put pieces of a split together."""

    def __init__(self, split: TokenSplit, *, context_tokens: int, end_of_text_id: int) -> None:
        """Open nothing yet."""
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
        # All masks there can be, a view of twice the context: with k zeros at the end is the k-th. A copy of a row is
        # twice as fast as a comparison with its length.
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
        """Find out where rows [N] lie."""
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
        """Find out where rows [N] lie."""
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        lengths = np.minimum(self._ends[rows] - starts, self._context_tokens)
        return self._builder.locate(starts, lengths, np.ones_like(rows), document_mask=False)
