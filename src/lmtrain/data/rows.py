"""Rows to train on, each T + 1 ids: how many there are, and reading some of them.

`N rows, B of them, T context tokens`.
"""

from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.manifest import Ids, Manifest, num_ids
from lmtrain.data.shards import REBUILD
from lmtrain.errors import DataError


class RowBatch(NamedTuple):
    """Rows of ids [B, T + 1]: inputs are all but the last, targets all but the first.

    `documents` [B, T] counts the documents of a row at each input; None where all see one another. `loss_mask` [B, T]
    marks the targets with loss; None where all do. `reference` [B] are log-probabilities of rows by a reference model.
    """

    ids: Ids
    documents: NDArray[np.int32] | None = None
    loss_mask: NDArray[np.bool_] | None = None
    reference: NDArray[np.float32] | None = None


class Rows(Protocol):
    """A packing's rows of a split."""

    @property
    def num_rows(self) -> int:
        """Return how many rows an epoch has."""
        ...

    @property
    def fingerprint(self) -> str:
        """Return the facts behind the rows: tokens, and how they were packed."""
        ...

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        """Read rows by their numbers: [B] -> [B, T + 1] of the shards' own type."""
        ...


def count_documents(
    boundaries: NDArray[np.int64], rows: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int32]:
    """Count documents along rows from the columns where new ones start, and the row of each: [P], [P] -> [B, T]."""
    starts = np.zeros(shape, np.int32)
    np.add.at(starts, (rows, boundaries), 1)
    return starts.cumsum(axis=1, dtype=np.int32)


def require_known(ids: NDArray[Any], vocab_size: int) -> None:
    """Refuse ids beyond the vocabulary: an error of the data, not of a device."""
    largest = int(ids.max(initial=0))
    if largest >= vocab_size:
        raise DataError(
            f"the data holds id {largest:,}, but its vocabulary has {vocab_size:,} entries: a shard is damaged. "
            f"`lmtrain verify FOLDER` names it. {REBUILD}"
        )


def with_known_ids(rows: Rows, manifest: Manifest) -> Rows:
    """Return rows with a look at each batch's largest id, or the rows themselves where the type holds no larger one."""
    return rows if manifest.vocab_size >= num_ids(manifest.dtype) else _KnownRows(rows, manifest.vocab_size)


@final
class _KnownRows:
    def __init__(self, rows: Rows, vocab_size: int) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self.num_rows, self.fingerprint = rows.num_rows, rows.fingerprint

    def read(self, rows: NDArray[np.int64]) -> RowBatch:
        batch = self._rows.read(rows)
        require_known(batch.ids, self._vocab_size)
        return batch
