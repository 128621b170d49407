"""A split cut into windows: to train on, and to measure on, each token but the first predicted once.

`T context tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.rows import RowBatch, count_documents
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


def num_training_windows(num_tokens: int, context_tokens: int) -> int:
    """Return how many windows of T + 1 tokens, each starting T after the last, lie inside a split: at least one."""
    num_windows = (num_tokens - 1) // context_tokens
    if num_windows < 1:
        raise ConfigurationError(
            f"batch.context_tokens: must be at most {num_tokens - 1:,}, as the shards have {num_tokens:,} tokens, "
            f"got {context_tokens}."
        )
    return num_windows


@final
@dataclass(frozen=True)
class HeldOutWindows:
    """The windows of a measurement: by number, those past the last one without targets.

    `spans` are the places of each window's targets in the split. With `document_ends`, a window begins with a document
    or a piece of one, which follows an end-of-text id, as in training, and sees no other document.
    """

    split: TokenSplit
    context_tokens: int
    spans: Sequence[tuple[int, int]]
    document_ends: NDArray[np.int64] | None = None

    @property
    def num_windows(self) -> int:
        """Return how many windows have a target."""
        return len(self.spans)

    def window(self, window: int) -> EvaluationWindow:
        """Return one window, padded with targets of -100; past the last one, a window without targets."""
        inputs = np.zeros(self.context_tokens, dtype=np.int64)
        targets = np.full(self.context_tokens, IGNORED, dtype=np.int64)
        start, stop = self.spans[window] if window < len(self.spans) else (0, 0)
        if num_targets := stop - start:
            ids = self.split.window(start, num_targets)
            before = start - 1 if self.document_ends is None else int(self.document_ends[0]) - 1
            inputs[0] = self.split.window(before, 1)[0]
            inputs[1:num_targets] = ids[:-1]
            targets[:num_targets] = ids
            if self.split.has_loss_mask:
                targets[:num_targets][~self.split.loss_mask(start, num_targets)] = IGNORED
        if self.document_ends is None:
            return EvaluationWindow(inputs, targets)
        places = np.minimum(np.arange(start, start + self.context_tokens), max(stop - 1, start))
        documents = self.document_ends.searchsorted(places, side="right")
        return EvaluationWindow(inputs, targets, (documents - documents[0]).astype(np.int32))


def evaluation_windows(split: TokenSplit, *, context_tokens: int, max_tokens: int | None = None) -> HeldOutWindows:
    """Cut a split so that each of its first `max_tokens` tokens (None: all) but the very first is predicted once.

    Tokens without loss are not predicted.
    """
    num_tokens = split.num_tokens if max_tokens is None else min(max_tokens, split.num_tokens)
    starts = range(1, num_tokens, context_tokens)
    return HeldOutWindows(split, context_tokens, [(at, min(at + context_tokens, num_tokens)) for at in starts])


def document_windows(
    split: TokenSplit, *, context_tokens: int, document_ends: NDArray[np.int64], max_tokens: int | None
) -> HeldOutWindows:
    """Cut the documents that begin within the first `max_tokens` (None: all) of a split.

    A window holds as many whole documents as fit one after the other; longer ones are in pieces of T tokens and a rest.
    """
    most = split.num_tokens if max_tokens is None else min(max_tokens, split.num_tokens)
    spans: list[tuple[int, int]] = []
    start = 0
    while start < most:
        whole = int(document_ends.searchsorted(start + context_tokens, side="right"))
        first = int(document_ends.searchsorted(start, side="right"))
        stop = int(document_ends[whole - 1]) if whole > first else start + context_tokens
        spans.append((start, stop))
        start = stop
    return HeldOutWindows(split, context_tokens, spans, document_ends)


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
        self._context_tokens = context_tokens
        self._ends = document_ends

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        """Read windows: [B] -> [B, T + 1]."""
        starts, num_tokens = rows * self._context_tokens, self._context_tokens
        loss_mask = None
        if self._split.has_loss_mask:
            loss_mask = np.stack([self._split.loss_mask(start + 1, num_tokens) for start in starts.tolist()])
        documents = None if self._ends is None else documents_of_windows(self._ends, starts, num_tokens)
        return RowBatch(self._split.windows(starts, num_tokens + 1), documents, loss_mask)


def documents_of_windows(ends: NDArray[np.int64], starts: NDArray[np.int64], num_tokens: int) -> NDArray[np.int32]:
    """Count the documents of each window, from where documents end: starts [N] -> [N, T].

    The last id of a document, end-of-text, is the first input of the next one; a window's first is its 0.
    """
    span = ends.searchsorted(np.stack([starts + 2, starts + num_tokens + 1], axis=1))
    counts = span[:, 1] - span[:, 0]
    rows = np.repeat(np.arange(len(starts)), counts)
    which = np.arange(len(rows)) + np.repeat(span[:, 1] - np.cumsum(counts), counts)
    return count_documents(ends[which] - 1 - starts[rows], rows, (len(starts), num_tokens))
