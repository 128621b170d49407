"""Best-fit decreasing: items into bins of one capacity, the longest first, each into the fullest bin with room.

As "Fewer Truncations Improve Language Modeling" (Ding et al., arXiv 2404.10830) packs documents. Items of one length
are placed together, so the work grows with the number of different lengths and not with the number of items.
"""

from collections import defaultdict, deque
from typing import final

import numpy as np
from numpy.typing import NDArray


def best_fit_decreasing(lengths: NDArray[np.int64], *, capacity: int) -> NDArray[np.int64]:
    """Return the bin of each item, counted from 0 in the order of opening: [N], lengths from 1 to capacity -> [N].

    Items of one length are placed in their own order, so the result is the same on every machine.
    """
    assert lengths.size == 0 or 1 <= int(lengths.min()) <= int(lengths.max()) <= capacity, capacity
    bin_of_item = np.empty(len(lengths), np.int64)
    order = np.argsort(lengths.astype(np.uint16 if capacity < 1 << 16 else np.int64), kind="stable")
    distinct, firsts, counts = np.unique(lengths[order], return_index=True, return_counts=True)
    room = _Room(capacity)
    for length, first, count in zip(distinct.tolist()[::-1], firsts.tolist()[::-1], counts.tolist()[::-1], strict=True):
        items = order[first : first + count]
        while len(items):
            bins = room.take(length, len(items))
            bin_of_item[items[: len(bins)]] = bins
            items = items[len(bins) :]
    return bin_of_item


@final
class _Room:
    """Bins by the space they have left."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_bins = 0
        self._open: defaultdict[int, deque[NDArray[np.int64]]] = defaultdict(deque)
        self._spaces = 0  # bit s is set where some bin has s left

    def take(self, length: int, num_items: int) -> NDArray[np.int64]:
        """Return bins for up to `num_items` items of a length: all from the smallest fitting space, or new ones."""
        fitting = self._spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            bins = self._open[space].popleft()
            if not self._open[space]:
                self._spaces ^= 1 << space
        else:
            space = self._capacity
            num_new = -(-num_items // (space // length))
            bins = np.arange(self._num_bins, self._num_bins + num_new)
            self._num_bins += num_new
        per_bin = space // length  # once used, a bin is the fullest fitting one: it takes the next item too
        num_full, rest = divmod(min(num_items, len(bins) * per_bin), per_bin)
        self._put(bins[num_full + (rest > 0) :], space)
        self._put(bins[:num_full], space - per_bin * length)
        self._put(bins[num_full : num_full + (rest > 0)], space - rest * length)
        return np.repeat(bins[: num_full + (rest > 0)], per_bin)[: num_full * per_bin + rest]

    def _put(self, bins: NDArray[np.int64], space: int) -> None:
        if len(bins) and space:
            self._open[space].append(bins)
            self._spaces |= 1 << space
