"""How documents become rows of T + 1 ids to train on.

A document's end-of-text id is also the next one's beginning: as an input it belongs to the next document, at position
0, and predicts the first id there. So every row of `BestFit` and `OneDocument` starts with an end-of-text id, and with
a document mask no target has to be left out: each id is predicted from its own document.
`B rows, T context tokens, P pieces`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.accounting.options.parts import PackingFacts
from lmtrain.data.packing_index import (
    ENDS_DTYPE,
    LENGTHS_DTYPE,
    PackingReport,
    build_best_fit,
    build_once,
    document_ends,
    end_of_text_id,
    index_folder,
    map_file,
    packing_report,
    require_end_of_text,
    require_ends,
)
from lmtrain.data.rows import RowBatch, Rows, count_documents
from lmtrain.data.shards import Dataset, TokenSplit
from lmtrain.data.windows import ContiguousRows, HeldOutWindows, document_windows, evaluation_windows
from lmtrain.errors import DataError


class Packing(ABC):
    """How rows to train on, and windows to measure on, are made."""

    document_mask: bool

    @property
    def keeps_documents_whole(self) -> bool:
        """Return whether the windows to measure on hold whole documents, which do not see one another."""
        return self.document_mask

    @abstractmethod
    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Make rows of the train split, once for the same data and context."""

    def held_out(self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None) -> HeldOutWindows:
        """Cut a held-out split, up to its first `max_tokens` tokens, at any place or into whole documents.

        Raises:
            DataError: Whole documents do not end with end-of-text.
        """
        tokens = dataset.split(split)
        if not self.keeps_documents_whole:
            return evaluation_windows(tokens, context_tokens=context_tokens, max_tokens=max_tokens)
        require_ends(dataset, tokens)
        ends = document_ends(dataset, split)
        return document_windows(tokens, context_tokens=context_tokens, document_ends=ends, max_tokens=max_tokens)

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Return the tokens of all rows once, padding included."""
        del context_tokens
        return dataset.split("train").num_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares cut and padded, or None where there are none."""
        del dataset, context_tokens
        return None


@dataclass(frozen=True, kw_only=True)
class Contiguous(Packing):
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
        ends = document_ends(dataset) if self.document_mask else None
        return ContiguousRows(
            split, context_tokens=context_tokens, fingerprint=dataset.manifest.fingerprint, document_ends=ends
        )


def best_fit_facts(*, of_conversations: bool = False) -> PackingFacts:
    """Name its index, and say whether it takes text."""
    return PackingFacts(index="best_fit", needs_conversations=of_conversations)


@dataclass(frozen=True, kw_only=True)
class BestFit(Packing):
    """Whole documents in rows as full as possible; those longer than T are cut into pieces of T and a rest.

    `of_conversations` refuses plain text, where every token would carry loss.
    """

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
        report, folder = _best_fit_index(dataset, context_tokens)
        row_ends = map_file(folder / "row_ends.i64", ENDS_DTYPE)
        starts = map_file(folder / "starts.i64", ENDS_DTYPE)
        lengths = map_file(folder / "lengths.u32", LENGTHS_DTYPE)
        return PackedRows(
            split,
            partial(_best_fit_pieces, row_ends, starts, lengths),
            num_rows=len(row_ends),
            fingerprint=f"{dataset.manifest.fingerprint}:best_fit:{context_tokens}",
            context_tokens=context_tokens,
            end_of_text_id=report.end_of_text_id,
            document_mask=self.document_mask,
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Find or build the index."""
        return _best_fit_index(dataset, context_tokens)[0].num_rows * context_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares of cut documents and of padding."""
        return _best_fit_index(dataset, context_tokens)[0].line("best_fit")


def _best_fit_index(dataset: Dataset, context_tokens: int) -> tuple[PackingReport, Path]:
    """Find or build the index of the train split next to the data."""
    folder, split = index_folder(dataset, "best_fit", context_tokens=context_tokens), dataset.split("train")
    report = build_once(folder, lambda aside: build_best_fit(split, aside, context_tokens=context_tokens))
    require_end_of_text(dataset, report.end_of_text_id)
    return report, folder


ONE_DOCUMENT_FACTS: Final = PackingFacts(row_is_document=True)


@dataclass(frozen=True, kw_only=True)
class OneDocument(Packing):
    """The first T tokens of one document, then padding."""

    @property
    def keeps_documents_whole(self) -> bool:
        """Return true."""
        return True

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Make a row of each document."""
        split, ends = dataset.split("train"), document_ends(dataset)
        end_id = end_of_text_id(split)
        require_end_of_text(dataset, end_id)
        return PackedRows(
            split,
            partial(_first_pieces, ends, context_tokens),
            num_rows=len(ends),
            fingerprint=f"{dataset.manifest.fingerprint}:document:{context_tokens}",
            context_tokens=context_tokens,
            end_of_text_id=end_id,
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Return a row of each document, padding included."""
        return dataset.split("train").num_documents * context_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares of cut documents, of tokens beyond the context and of padding."""
        beyond = np.diff(document_ends(dataset), prepend=0) - context_tokens
        cut = beyond[beyond > 0]
        split = dataset.split("train")
        return packing_report(
            split, context_tokens, num_rows=split.num_documents, num_cut=len(cut), num_dropped=int(cut.sum())
        ).line("document")


class RowPieces(NamedTuple):
    """RowPieces of documents: where each starts and its length [P], and how many each row has [B]."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]


@final
class PackedRows:
    """Rows of pieces of documents: an end-of-text id, the pieces back to back, and end-of-text ids as padding.

    The end-of-text id before a piece belongs to that piece as an input. Padding carries no loss.
    """

    def __init__(
        self,
        split: TokenSplit,
        pieces_of: Callable[[NDArray[np.int64]], RowPieces],
        *,
        num_rows: int,
        fingerprint: str,
        context_tokens: int,
        end_of_text_id: int,
        document_mask: bool = False,
    ) -> None:
        """Read the pieces that `pieces_of` returns for numbers of rows [B]."""
        self.num_rows, self.fingerprint = num_rows, fingerprint
        self._split, self._pieces_of = split, pieces_of
        self._context_tokens, self._end_of_text_id = context_tokens, end_of_text_id
        self._document_mask = document_mask

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        """Read rows: [B] -> [B, T + 1]."""
        starts, lengths, counts = self._pieces_of(rows)
        num_tokens = self._context_tokens
        row_of_piece = np.repeat(np.arange(len(rows)), counts)
        stops = np.cumsum(lengths)
        last_piece = np.cumsum(counts) - 1
        stops -= np.repeat(np.concatenate(([0], stops[last_piece[:-1]])), counts)  # now from the row's start
        ids = np.full((len(rows), num_tokens + 1), self._end_of_text_id, self._split.dtype)
        loss_mask = np.arange(num_tokens) < stops[last_piece, None]
        pieces = (row_of_piece.tolist(), starts.tolist(), lengths.tolist(), stops.tolist())
        for row, start, length, stop in zip(*pieces, strict=True):
            ids[row, stop - length + 1 : stop + 1] = self._split.window(start, length)
            if self._split.has_loss_mask:
                loss_mask[row, stop - length : stop] = self._split.loss_mask(start, length)
        documents = None
        if self._document_mask:
            inside = stops < num_tokens
            documents = count_documents(stops[inside], row_of_piece[inside], (len(rows), num_tokens))
        return RowBatch(ids, documents, loss_mask)


def _best_fit_pieces(
    row_ends: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64], rows: NDArray[np.int64]
) -> RowPieces:
    """Return pieces [starts, starts + lengths), up to `row_ends` of them in the rows up to each row's end."""
    stops = row_ends[rows]
    counts = stops - np.where(rows > 0, row_ends[rows - 1], 0)
    pieces = np.arange(int(counts.sum())) + np.repeat(stops - np.cumsum(counts), counts)
    return RowPieces(starts[pieces], lengths[pieces].astype(np.int64), counts)


def _first_pieces(ends: NDArray[np.int64], context_tokens: int, rows: NDArray[np.int64]) -> RowPieces:
    """Return the first T tokens of the documents that end at `ends`."""
    starts = np.where(rows > 0, ends[rows - 1], 0)
    return RowPieces(starts, np.minimum(ends[rows] - starts, context_tokens), np.ones_like(rows))
