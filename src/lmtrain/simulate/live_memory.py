"""Bytes of live tensors, real or fake, from their operation to the end of their last reference; in all, and by kind."""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, final

from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class Operations(TorchDispatchMode):
    """Shows every operation on plain tensors, real or fake, those inside of a DTensor's too, once it is done."""

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch comes first, and ours sees its calls
        named = kwargs or {}
        made = func(*args, **named)
        self.take(func, list(args), named, made)
        return made

    def take(self, func: Any, arguments: list[Any], named: dict[str, Any], made: Any) -> None:
        """Look at an operation, its arguments in order and by name, and its result."""
        raise NotImplementedError


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors of nested lists and tuples."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class LiveBytes(Operations):
    """`now` and `peak` are bytes of all storages made inside, real or fake; `known` tensors count nothing.

    torch's own allocators agree to the byte on a CPU; a GPU's rounds blocks up to 512 bytes.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {storage_key(tensor): 0 for tensor in known}

    @override
    def take(self, func: Any, arguments: list[Any], named: dict[str, Any], made: Any) -> None:
        for tensor in tensors_in(made):
            self._watch(tensor)

    def _watch(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += self._sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


def storage_key(tensor: Tensor) -> int:
    """Name a tensor's storage, real or fake, as long as it lives."""
    return tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


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

    Gathered weights are emptied and filled again in place, where no operation shows it: only these are looked at again
    at every reading. Those of tensor groups, put together in other ways, are known once they are empty
    (`find_emptied`).
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
