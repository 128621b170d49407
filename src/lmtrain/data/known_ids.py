"""Rows of ids below the size of the vocabulary: an id beyond it is an error of the data, not of a device."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.layout import num_ids
from lmtrain.data.manifest import Manifest
from lmtrain.data.rows import LocatedRows, RowBatch, Rows
from lmtrain.data.shards import REBUILD
from lmtrain.errors import DataError


def require_known(ids: NDArray[Any], vocab_size: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        DataError: The largest one is beyond it.
    """
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

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def fingerprint(self) -> str:
        return self._rows.fingerprint

    def locate(self, rows: NDArray[np.int64]) -> LocatedRows:
        return _KnownLocated(self._rows.locate(rows), self._vocab_size)


@final
class _KnownLocated:
    def __init__(self, located: LocatedRows, vocab_size: int) -> None:
        self._located = located
        self._vocab_size = vocab_size

    def read(self, first: int, last: int) -> RowBatch:
        batch = self._located.read(first, last)
        require_known(batch.ids, self._vocab_size)
        return batch
