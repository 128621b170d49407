"""Rows to train on, each T + 1 ids: how many there are, and reading some of them.

The places of rows are found for many at once, at hardly more cost than for one; then they are read a batch at a
time. `N rows, B of them, T context tokens, P pieces`.
"""

from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from lmtrain.data.gather import BLOCK, MOST_BLOCK_BYTES, Blocks, address_of, copy_blocks, cover
from lmtrain.data.manifest import Manifest, num_ids
from lmtrain.data.shards import REBUILD, Ids, TokenSplit
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


class LocatedRows(Protocol):
    """Rows [N] with known places in the files."""

    def read(self, first: int, last: int) -> RowBatch:
        """Read the rows from `first` up to `last` of these: [B, T + 1] of the shards' own type."""
        ...


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

    def locate(self, rows: NDArray[np.int64]) -> LocatedRows:
        """Find out where rows [N] lie."""
        ...


def read_rows(rows: Rows, numbers: NDArray[np.int64]) -> RowBatch:
    """Locate and read rows: [B] -> [B, T + 1]."""
    return rows.locate(numbers).read(0, len(numbers))


class ShardPieces(NamedTuple):
    """Pieces of shards, [P] each, ascending in where they are to be put."""

    shards: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]


@final
class PieceReader:
    """Copy pieces of a split, given by position and length, to places in a flat array."""

    def __init__(self, split: TokenSplit) -> None:
        """Open nothing yet."""
        self._split = split
        self._starts = split.shard_starts
        self._dtype = split.dtype
        self._ids: dict[int, int] = {}
        self._masks: dict[int, memoryview | None] = {}

    def __getstate__(self) -> dict[str, object]:
        """Leave the maps behind: a loader process opens its own."""
        return {**self.__dict__, "_ids": {}, "_masks": {}}

    def locate(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64]) -> ShardPieces:
        """Find the shards of pieces [P], cutting them where shards meet; `places` ascend."""
        shards = self._starts.searchsorted(starts, side="right") - 1
        room = self._starts[shards + 1] - starts
        if (room >= lengths).all():
            return ShardPieces(shards, starts - self._starts[shards], lengths, places)
        rest = room < lengths
        first = np.minimum(room, lengths)
        starts = np.concatenate([starts, starts[rest] + first[rest]])
        places = np.concatenate([places, places[rest] + first[rest]])
        lengths = np.concatenate([first, lengths[rest] - first[rest]])
        order = np.argsort(places, kind="stable")
        return self.locate(starts[order], lengths[order], places[order])

    def blocks(self, pieces: ShardPieces, *, usual_length: int | None = None) -> list[Blocks]:
        """Return the ids of pieces as blocks to copy, most of them perhaps of a `usual_length`."""
        firsts = np.zeros(len(self._starts) - 1, np.int64)
        for shard in np.unique(pieces.shards).tolist():
            if shard not in self._ids:
                self._ids[shard] = address_of(self._split.shard_ids(shard))  # the split keeps the map
            firsts[shard] = self._ids[shard]
        item_bytes = self._dtype.itemsize
        addresses = firsts[pieces.shards] + pieces.offsets * item_bytes
        longest = min(usual_length or BLOCK, MOST_BLOCK_BYTES // item_bytes)
        lengths = (BLOCK, 1) if longest <= BLOCK else (longest, BLOCK, 1)
        return cover(addresses, pieces.lengths, pieces.places, item_bytes=item_bytes, block_lengths=lengths)

    def read_ids(self, blocks: list[Blocks], first: int, ids: Ids) -> None:
        """Copy the pieces in [first, first + size) to `ids`, contiguous in memory."""
        assert ids.dtype == self._dtype, (ids.dtype, self._dtype)
        self._split.require_whole()
        copy_blocks(blocks, first, ids)

    def read_mask(self, pieces: ShardPieces, first: int, mask: NDArray[np.uint8]) -> None:
        """Copy loss marks likewise; shards without any leave `mask` as it is."""
        self._split.require_whole()
        target, maps = mask.reshape(-1).data, self._masks
        for shard, offset, length, place in _between(pieces, first, first + mask.size):
            if shard not in maps:
                marks = self._split.shard_mask(shard)
                maps[shard] = None if marks is None else marks.data
            if (source := maps[shard]) is not None:
                target[place : place + length] = source[offset : offset + length]


class DocumentSpans(NamedTuple):
    """The documents of rows [N] one after another: their numbers in their rows, and how many inputs each has."""

    numbers: NDArray[np.int32]
    lengths: NDArray[np.int64]
    row_bounds: NDArray[np.int64]
    num_tokens: int

    def read(self, first: int, last: int) -> NDArray[np.int32]:
        """Return the document of each input of some of the rows: [B, T]."""
        start, stop = self.row_bounds[first], self.row_bounds[last]
        return np.repeat(self.numbers[start:stop], self.lengths[start:stop]).reshape(-1, self.num_tokens)


def document_spans(boundaries: NDArray[np.int64], rows: NDArray[np.int64], shape: tuple[int, int]) -> DocumentSpans:
    """Count documents along rows [N, T] from the columns (each above 0, ascending in its row) where new ones start.

    `rows` holds the row of each boundary, ascending.
    """
    num_rows, num_tokens = shape
    bounds = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows) + 1, out=bounds[1:])
    starts = np.empty(len(rows) + num_rows, np.int64)
    is_boundary = np.ones(len(starts), np.bool_)
    is_boundary[bounds[:-1]] = False
    starts[bounds[:-1]] = np.arange(num_rows) * num_tokens
    starts[is_boundary] = boundaries + rows * num_tokens
    numbers = np.arange(len(starts)) - np.repeat(bounds[:-1], np.diff(bounds))
    lengths = np.diff(starts, append=num_rows * num_tokens)
    return DocumentSpans(numbers.astype(np.int32), lengths, bounds, num_tokens)


def _between(pieces: ShardPieces, first: int, last: int) -> "zip[tuple[int, int, int, int]]":
    """Yield (shard, offset in it, length, place from `first` on) of the pieces in [first, last)."""
    start, stop = pieces.places.searchsorted((first, last)).tolist()
    columns = (pieces.shards[start:stop], pieces.offsets[start:stop], pieces.lengths[start:stop])
    return zip(*(column.tolist() for column in columns), (pieces.places[start:stop] - first).tolist(), strict=True)


def require_known(ids: NDArray[Any], vocab_size: int) -> None:
    """Refuse ids beyond the vocabulary: an error of the data, not of a device.

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
