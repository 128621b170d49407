"""The ids of many texts back to back, and where each text's end: the result of encoding a batch."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

FlatIds = tuple[NDArray[np.uint32], NDArray[np.int64]]
Encode = Callable[[Sequence[str]], list[list[int]]]
EncodeFlat = Callable[[Sequence[str]], FlatIds]


def flatten(encoded: Sequence[Sequence[int]]) -> FlatIds:
    """Return the ids of all texts back to back, and where each text's end."""
    ends = np.cumsum([len(ids) for ids in encoded], dtype=np.int64)
    return np.fromiter(chain.from_iterable(encoded), dtype=np.uint32, count=int(ends[-1]) if len(ends) else 0), ends


def encode_around(odd: Sequence[int], texts: Sequence[str], *, usual: EncodeFlat, otherwise: EncodeFlat) -> FlatIds:
    """Encode the texts at `odd` places otherwise than the rest."""
    is_odd = np.zeros(len(texts), dtype=np.bool_)
    is_odd[list(odd)] = True
    lengths = np.empty(len(texts), dtype=np.int64)
    encoded: list[tuple[NDArray[np.bool_], NDArray[np.uint32]]] = []
    for these, encode in ((~is_odd, usual), (is_odd, otherwise)):
        places = np.flatnonzero(these)
        if len(places):
            ids, ends = encode([texts[place] for place in places.tolist()])
            lengths[places] = np.diff(ends, prepend=0)
            encoded.append((these, ids))
    joined = np.empty(int(lengths.sum()), dtype=np.uint32)
    for these, ids in encoded:
        joined[np.repeat(these, lengths)] = ids
    return joined, np.cumsum(lengths)
