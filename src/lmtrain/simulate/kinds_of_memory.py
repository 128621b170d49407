"""Bytes of live storages by kind: weights, gathered weights, gradients, optimizer state, activations and the rest."""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal, final

from torch import Tensor, UntypedStorage

from lmtrain.simulate.live_bytes import storage_key

Kind = Literal["weights", "gathered weights", "gradients", "optimizer", "activations", "messages", "workspace"]
KINDS: Final[tuple[Kind, ...]] = (
    "weights",
    "gathered weights",
    "gradients",
    "optimizer",
    "activations",
    "messages",
    "workspace",
)


@final
class KindsOfMemory:
    """Storages from their first sight to the end of their last reference.

    Gathered weights are emptied and filled again in place, where no operation tells: these alone are looked at anew at
    every reading.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, Kind] = {}
        self._sizes: dict[int, int] = {}
        self._bytes: Counter[Kind] = Counter()
        self._gathered: dict[int, weakref.ref[UntypedStorage]] = {}

    def hold(self, tensors: Iterable[Tensor], kind: Kind, *, again: bool = False) -> None:
        """Count storages under a kind; `again` moves those seen before to it too."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key not in self._kinds:
                storage = tensor.untyped_storage()
                self._kinds[key], self._sizes[key] = kind, storage.nbytes()
                self._bytes[kind] += storage.nbytes()
                weakref.finalize(storage, self._forget, key)
            elif again and self._kinds[key] != kind:
                self._bytes[self._kinds[key]] -= self._sizes[key]
                self._bytes[kind] += self._sizes[key]
                self._kinds[key] = kind
            if kind == "gathered weights":
                self._gathered[key] = weakref.ref(tensor.untyped_storage())

    def now(self) -> Mapping[Kind, int]:
        """Return the bytes of every kind."""
        for key, reference in self._gathered.items():
            storage = reference()
            size = 0 if storage is None else storage.nbytes()
            if size != self._sizes[key]:
                self._bytes[self._kinds[key]] += size - self._sizes[key]
                self._sizes[key] = size
        return {kind: self._bytes[kind] for kind in KINDS}

    def _forget(self, key: int) -> None:
        self._bytes[self._kinds.pop(key)] -= self._sizes.pop(key)
        self._gathered.pop(key, None)
