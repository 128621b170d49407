"""Copy many pieces of memory-mapped arrays to their places, in a few calls into numpy however many pieces there are.

A piece is covered by blocks of one length; the last ends with the piece, and may overlap the one before (with the same
values); pieces shorter than a block are covered by shorter ones. Blocks name their source by its address in memory: one
call copies from any number of files. `P pieces, N blocks`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
_LOWEST_ADDRESS = 4096
_NUM_ADDRESSES = 1 << 47
MOST_BLOCK_BYTES = (2**63 - 1) // _NUM_ADDRESSES  # an array of one block at each address has a countable size


class Blocks(NamedTuple):
    """Runs of `length` items: addresses of their first bytes, and places ascending, [N] each."""

    length: int
    addresses: NDArray[np.int64]
    places: NDArray[np.int64]


def cover(
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64],
    places: NDArray[np.int64],
    *,
    item_bytes: int,
    block_lengths: Sequence[int] = (BLOCK, 1),
) -> list[Blocks]:
    """Cover pieces [P] exactly by blocks; `places` ascend, and so do block lengths down to 1."""
    blocks: list[Blocks] = []
    for block_length in block_lengths:
        long = lengths >= block_length
        if long.all():
            blocks.append(_blocks(addresses, lengths, places, item_bytes, block_length))
            break
        if long.any():
            blocks.append(_blocks(addresses[long], lengths[long], places[long], item_bytes, block_length))
            addresses, lengths, places = addresses[~long], lengths[~long], places[~long]
    return [some for some in blocks if len(some.places)]


def copy_blocks(blocks: Sequence[Blocks], first: int, target: NDArray[Any]) -> None:
    """Copy the blocks of places [first, first + size) to `target`, contiguous in memory."""
    flat = target.reshape(-1)
    for length, addresses, places in blocks:
        start, stop = places.searchsorted((first, first + flat.size))
        if start < stop:
            runs = _every_run(flat, length)
            runs[places[start:stop] - first] = _memory(length * flat.itemsize)[addresses[start:stop]]


def gather_rows(rows: Blocks, first: int, last: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return some of the blocks as rows, copied once: [B, length]."""
    items = _memory(rows.length * dtype.itemsize)[rows.addresses[first:last]]
    return items.view(dtype).reshape(last - first, rows.length)


def address_of(array: NDArray[Any]) -> int:
    """Return where in memory an array begins, as blocks count it. The caller keeps the array alive."""
    return int(array.__array_interface__["data"][0]) - _LOWEST_ADDRESS


def _blocks(
    addresses: NDArray[np.int64], lengths: NDArray[np.int64], places: NDArray[np.int64], item_bytes: int, length: int
) -> Blocks:
    if (lengths == length).all():
        return Blocks(length, addresses, places)
    counts = -(-lengths // length)
    ends = counts.cumsum()
    offsets = np.arange(int(ends[-1]) if len(ends) else 0) * length - np.repeat((ends - counts) * length, counts)
    lasts = ends[counts > 0] - 1
    offsets[lasts] = (lengths - length)[counts > 0]
    return Blocks(length, np.repeat(addresses, counts) + offsets * item_bytes, np.repeat(places, counts) + offsets)


def _every_run(items: NDArray[Any], length: int) -> NDArray[Any]:
    """Return every run of `length` items as one opaque item, a view without a copy."""
    dtype = np.dtype((np.void, length * items.itemsize))
    return np.ndarray((items.size - length + 1,), dtype, buffer=items, strides=(items.itemsize,))


@lru_cache(maxsize=64)
def _memory(num_bytes: int) -> NDArray[Any]:
    """Return the runs of `num_bytes` bytes from each address of this process."""
    return np.asarray(_AllMemory(num_bytes))


@final
class _AllMemory:
    def __init__(self, num_bytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{num_bytes}",
            "shape": (_NUM_ADDRESSES,),
            "strides": (1,),
            "data": (_LOWEST_ADDRESS, True),
        }
