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
    every reading. Those of tensor groups, put together in other ways, are known once they are empty (`find_emptied`).
    """

    def __init__(self) -> None:
        self._kinds: dict[int, Kind] = {}
        self._sizes: dict[int, int] = {}
        self._bytes: Counter[Kind] = Counter()
        self._storages: dict[int, weakref.ref[UntypedStorage]] = {}
        self._gathered: set[int] = set()

    def hold(self, tensors: Iterable[Tensor], kind: Kind, *, again: bool = False) -> None:
        """Count storages under a kind; `again` moves those seen before to it too."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key not in self._kinds:
                storage = tensor.untyped_storage()
                self._kinds[key], self._sizes[key] = kind, storage.nbytes()
                self._bytes[kind] += storage.nbytes()
                self._storages[key] = weakref.ref(storage)
                weakref.finalize(storage, self._forget, key)
            elif again and self._kinds[key] != kind:
                self._bytes[self._kinds[key]] -= self._sizes[key]
                self._bytes[kind] += self._sizes[key]
                self._kinds[key] = kind
            if kind == "gathered weights":
                self._gathered.add(key)

    def find_emptied(self) -> None:
        """Count every storage emptied in place as gathered weights from now on: between two steps they all are."""
        for key, reference in self._storages.items():
            storage = reference()
            if storage is not None and self._sizes[key] and not storage.nbytes():
                self._bytes[self._kinds[key]] -= self._sizes[key]
                self._kinds[key], self._sizes[key] = "gathered weights", 0
                self._gathered.add(key)

    def now(self) -> Mapping[Kind, int]:
        """Return the bytes of every kind."""
        for key in self._gathered:
            storage = self._storages[key]()
            size = 0 if storage is None else storage.nbytes()
            if size != self._sizes[key]:
                self._bytes[self._kinds[key]] += size - self._sizes[key]
                self._sizes[key] = size
        return {kind: self._bytes[kind] for kind in KINDS}

    def _forget(self, key: int) -> None:
        self._bytes[self._kinds.pop(key)] -= self._sizes.pop(key)
        self._storages.pop(key)
        self._gathered.discard(key)
