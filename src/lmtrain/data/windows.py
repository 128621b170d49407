"""A split cut into windows: to train on, and to measure on, each token but the first predicted once.

`T context tokens`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.gather import gather_rows
from lmtrain.data.rows import DocumentSpans, LocatedRows, PieceReader, RowBatch, document_spans
from lmtrain.data.shards import TokenSplit
from lmtrain.errors import ConfigurationError

IGNORED = -100


class EvaluationWindow(NamedTuple):
    """The model's input and its targets: both [T], targets to leave out are -100.

    `documents` [T] counts the documents where they do not see one another, else it is None.
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    documents: NDArray[np.int32] | None = None


class HeldOutWindows(Protocol):
    """The windows of a measurement: by number, those past the last one without targets."""

    @property
    def num_windows(self) -> int:
        """Return how many windows have a target."""
        ...

    def window(self, window: int) -> EvaluationWindow:
        """Return one window."""
        ...


def num_training_windows(num_tokens: int, context_tokens: int) -> int:
    """Return how many windows of T + 1 tokens, each starting T after the last, lie inside a split.

    Raises:
        ConfigurationError: Not even one: the context is longer than the split.
    """
    num_windows = (num_tokens - 1) // context_tokens
    if num_windows < 1:
        longest = num_tokens - 1
        nearest = 1 << (longest.bit_length() - 1) if longest > 0 else 0
        fix = f"nearest valid: {nearest}, or prepare more text" if nearest else "prepare more text"
        msg = (
            f"batch.context_tokens={context_tokens} needs {context_tokens + 1:,} tokens, the shards have {num_tokens:,}"
        )
        raise ConfigurationError(f"{msg}; {fix}.")
    return num_windows


@final
@dataclass(frozen=True)
class EvaluationWindows:
    """Successive windows without overlap; those at or past the end are padded with targets of -100."""

    split: TokenSplit
    context_tokens: int
    num_targets: int

    @property
    def num_windows(self) -> int:
        """Return how many windows have a target."""
        return -(-self.num_targets // self.context_tokens)

    def window(self, window: int) -> EvaluationWindow:
        """Return one window; past the last one, a window without targets."""
        start = window * self.context_tokens
        num_targets = min(max(self.num_targets - start, 0), self.context_tokens)
        inputs = np.zeros(self.context_tokens, dtype=np.int64)
        targets = np.full(self.context_tokens, IGNORED, dtype=np.int64)
        if num_targets:
            ids = self.split.window(start, num_targets + 1)
            inputs[:num_targets] = ids[:-1]
            targets[:num_targets] = ids[1:]
            if self.split.has_loss_mask:
                marked = self.split.loss_mask_windows(np.array([start + 1]), num_targets)[0]
                targets[:num_targets][~marked] = IGNORED
        return EvaluationWindow(inputs, targets)


@final
class DocumentWindows:
    """Whole documents, as many as fit one after the other; longer ones in pieces of T tokens and a rest.

    Each, and each piece, follows an end-of-text id, as in training, and sees no other document.
    """

    def __init__(
        self, split: TokenSplit, *, context_tokens: int, document_ends: NDArray[np.int64], max_tokens: int | None
    ) -> None:
        """Cut the documents beginning within the first `max_tokens` (None: all) of a split."""
        self._split, self._context_tokens, self._ends = split, context_tokens, document_ends
        self._most = split.num_tokens if max_tokens is None else min(max_tokens, split.num_tokens)
        self._spans = list(self._cut())

    @property
    def num_windows(self) -> int:
        """Return how many windows have a target."""
        return len(self._spans)

    def window(self, window: int) -> EvaluationWindow:
        """Return one window; past the last one, a window without targets."""
        inputs = np.zeros(self._context_tokens, dtype=np.int64)
        targets = np.full(self._context_tokens, IGNORED, dtype=np.int64)
        start, stop = self._spans[window] if window < len(self._spans) else (0, 0)
        num_targets = stop - start
        if num_targets:
            ids = self._split.window(start, num_targets)
            inputs[0] = self._split.window(int(self._ends[0]) - 1, 1)[0]
            inputs[1:num_targets] = ids[:-1]
            targets[:num_targets] = ids
            if self._split.has_loss_mask:
                marked = self._split.loss_mask_windows(np.array([start]), num_targets)[0]
                targets[:num_targets][~marked] = IGNORED
        places = np.arange(start, start + self._context_tokens)
        documents = self._ends.searchsorted(np.minimum(places, max(stop - 1, start)), side="right")
        return EvaluationWindow(inputs, targets, (documents - documents[0]).astype(np.int32))

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Yield where each window starts and stops."""
        start = 0
        while start < self._most:
            whole = int(self._ends.searchsorted(start + self._context_tokens, side="right"))
            first = int(self._ends.searchsorted(start, side="right"))
            stop = int(self._ends[whole - 1]) if whole > first else start + self._context_tokens
            yield start, stop
            start = stop


def evaluation_windows(
    split: TokenSplit, *, context_tokens: int, max_tokens: int | None = None
) -> EvaluationWindows:
    """Cut a split so that each of its first `max_tokens` tokens (None: all) but the very first is predicted once.

    Tokens without loss are not predicted.
    """
    num_tokens = split.num_tokens if max_tokens is None else min(max_tokens, split.num_tokens)
    return EvaluationWindows(
        split=split,
        context_tokens=context_tokens,
        num_targets=max(num_tokens - 1, 0),
    )


@final
class ContiguousRows:
    """Training windows as rows, the last id of one the first of the next."""

    def __init__(
        self, split: TokenSplit, *, context_tokens: int, fingerprint: str, document_ends: NDArray[np.int64] | None
    ) -> None:
        """Cut a split into windows; with `document_ends`, count documents in each."""
        self.num_rows = num_training_windows(split.num_tokens, context_tokens)
        self.fingerprint = fingerprint
        self._split = split
        self._reader = PieceReader(split)
        self._context_tokens = context_tokens
        self._ends = document_ends

    def locate(self, rows: NDArray[np.int64]) -> LocatedRows:
        """Find out where rows [N] lie."""
        starts, num_tokens = rows * self._context_tokens, self._context_tokens
        self._split.require_whole()
        documents = None if self._ends is None else spans_of_windows(self._ends, starts, num_tokens)
        return _LocatedWindows(self._split, self._reader, starts, num_tokens, documents)


@final
class _LocatedWindows:
    def __init__(
        self,
        split: TokenSplit,
        reader: PieceReader,
        starts: NDArray[np.int64],
        num_tokens: int,
        documents: DocumentSpans | None,
    ) -> None:
        self._split = split
        self._reader = reader
        self._starts = starts
        self._num_tokens = num_tokens
        self._documents = documents
        self._has_loss_mask = split.has_loss_mask
        lengths, places = np.full(len(starts), num_tokens + 1), np.arange(len(starts)) * (num_tokens + 1)
        self._blocks = reader.blocks(reader.locate(starts, lengths, places), usual_length=num_tokens + 1)

    def read(self, first: int, last: int) -> RowBatch:
        """Read windows `first` to `last`: [B, T + 1]."""
        starts, num_tokens = self._starts[first:last], self._num_tokens
        if len(self._blocks) == 1 and self._blocks[0].length == num_tokens + 1:  # none crosses from shard to shard
            self._split.require_whole()
            ids = gather_rows(self._blocks[0], first, last, self._split.dtype)
        else:
            ids = np.empty((len(starts), num_tokens + 1), self._split.dtype)
            self._reader.read_ids(self._blocks, first * (num_tokens + 1), ids)
        return RowBatch(
            ids,
            None if self._documents is None else self._documents.read(first, last),
            self._split.loss_mask_windows(starts + 1, num_tokens) if self._has_loss_mask else None,
        )


def spans_of_windows(ends: NDArray[np.int64], starts: NDArray[np.int64], num_tokens: int) -> DocumentSpans:
    """Count the documents of each window, from where documents end: starts [N] -> [N, T].

    The last id of a document, end-of-text, is the first input of the next one; a window's first is its 0.
    """
    span = ends.searchsorted(np.stack([starts + 2, starts + num_tokens + 1], axis=1))
    counts = span[:, 1] - span[:, 0]
    rows = np.repeat(np.arange(len(starts)), counts)
    which = np.arange(len(rows)) + np.repeat(span[:, 1] - np.cumsum(counts), counts)
    return document_spans(ends[which] - 1 - starts[rows], rows, (len(starts), num_tokens))
