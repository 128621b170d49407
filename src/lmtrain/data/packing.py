"""How documents become rows of T + 1 ids to train on.

A document's end-of-text id is also the next one's beginning: as an input it belongs to the next document, at position
0, and predicts the first id there. So every row of `BestFit` and `OneDocument` starts with an end-of-text id, and with
a document mask no target has to be left out: each id is predicted from its own document. `T context tokens`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lmtrain.accounting.options.parts import PackingFacts
from lmtrain.data.document_ends import ENDS_DTYPE, document_ends, map_file
from lmtrain.data.packed_rows import BestFitRows, OneDocumentRows, RowBuilder
from lmtrain.data.packing_index import (
    LENGTHS_DTYPE,
    PackingReport,
    build_best_fit,
    build_once,
    build_one_document,
    index_folder,
    is_native,
    last_ids,
    require_end_of_text,
)
from lmtrain.data.rows import Rows
from lmtrain.data.shards import Dataset, TokenSplit
from lmtrain.data.windows import ContiguousRows, DocumentWindows, HeldOutWindows, evaluation_windows
from lmtrain.errors import DataError


class Packing(Protocol):
    """A choice of how to make rows, to train on and to measure on."""

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
        """Return one line on the shares cut and padded, or None where they are not known."""
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
            DataError: Documents are to be apart, and do not end with end-of-text.
        """
        split = dataset.split("train")
        if self.document_mask:
            _require_ends(dataset, split)
        return ContiguousRows(
            split,
            context_tokens=context_tokens,
            fingerprint=dataset.manifest.fingerprint,
            document_ends=document_ends(dataset) if self.document_mask else None,
        )

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a split at any place, into whole documents where they do not see one another."""
        return held_out_windows(
            dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=self.document_mask
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Return the tokens of the text."""
        del context_tokens
        return dataset.split("train").num_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return nothing: windows cut at any place."""
        del dataset, context_tokens
        return None


def best_fit_facts(*, document_mask: bool = False, of_conversations: bool = False) -> PackingFacts:
    """Name its index, and tell its held-out windows and whether it takes text."""
    return PackingFacts(
        holds_out_whole_documents=document_mask, index="best_fit", needs_conversations=of_conversations
    )


@dataclass(frozen=True, kw_only=True)
class BestFit:
    """Whole documents in rows as full as possible; those longer than T are cut into pieces of T and a rest.

    `of_conversations` takes no text, of which every word would carry loss.
    """

    document_mask: bool = False
    of_conversations: bool = False

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Find or build the index.

        Raises:
            DataError: It is text, where conversations are asked for.
        """
        if self.of_conversations and not dataset.split("train").has_loss_mask:
            raise DataError(
                f"{dataset.folder} is text, without marks of the assistant's words; packing=conversations learns only "
                "these: name conversations, or train on all words with task=pretrain."
            )
        report, folder = self._index(dataset, context_tokens)
        split = dataset.split("train")
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
        """Cut a split at any place, into whole documents where they do not see one another."""
        return held_out_windows(
            dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=self.document_mask
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Find or build the index."""
        return self._index(dataset, context_tokens)[0].num_rows * context_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares of cut documents and of padding."""
        return self._index(dataset, context_tokens)[0].line("best_fit")

    def _index(self, dataset: Dataset, context_tokens: int) -> tuple[PackingReport, Path]:
        folder = index_folder(dataset, "best_fit", context_tokens=context_tokens)
        split = dataset.split("train")
        report = build_once(folder, lambda aside: build_best_fit(split, aside, context_tokens=context_tokens))
        require_end_of_text(dataset, report.end_of_text_id)
        return report, folder


def one_document_facts() -> PackingFacts:
    """Describe its rows and its held-out windows."""
    return PackingFacts(holds_out_whole_documents=True, row_is_document=True)


@dataclass(frozen=True, kw_only=True)
class OneDocument:
    """The first T tokens of one document, then padding."""

    def rows(self, dataset: Dataset, *, context_tokens: int) -> Rows:
        """Make a row of each document."""
        report, folder = self._index(dataset, context_tokens)
        split = dataset.split("train")
        return OneDocumentRows(
            RowBuilder(split, context_tokens=context_tokens, end_of_text_id=report.end_of_text_id),
            document_ends=map_file(folder / "document_ends.i64", ENDS_DTYPE),
            context_tokens=context_tokens,
            fingerprint=f"{dataset.manifest.fingerprint}:document:{context_tokens}",
        )

    def held_out(
        self, dataset: Dataset, split: str, *, context_tokens: int, max_tokens: int | None
    ) -> HeldOutWindows:
        """Cut a split into whole documents."""
        return held_out_windows(
            dataset, split, context_tokens=context_tokens, max_tokens=max_tokens, are_whole=True
        )

    def epoch_tokens(self, dataset: Dataset, *, context_tokens: int) -> int:
        """Find or build the index."""
        return self._index(dataset, context_tokens)[0].num_rows * context_tokens

    def report(self, dataset: Dataset, *, context_tokens: int) -> str | None:
        """Return one line on the shares of cut documents and of padding."""
        return self._index(dataset, context_tokens)[0].line("document")

    def _index(self, dataset: Dataset, context_tokens: int) -> tuple[PackingReport, Path]:
        folder = index_folder(dataset, "document", context_tokens=context_tokens)
        split = dataset.split("train")
        report = build_once(folder, lambda aside: build_one_document(split, aside, context_tokens=context_tokens))
        require_end_of_text(dataset, report.end_of_text_id)
        return report, folder


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
    _require_ends(dataset, tokens)
    ends = document_ends(dataset, split)
    return DocumentWindows(tokens, context_tokens=context_tokens, document_ends=ends, max_tokens=max_tokens)


def _require_ends(dataset: Dataset, tokens: TokenSplit) -> None:
    for found in () if is_native(dataset) else sorted(last_ids(tokens, within_shards=True)):
        require_end_of_text(dataset, found)
