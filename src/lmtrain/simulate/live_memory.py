"""Bytes of live tensors, real or fake, from their operation to the end of their last reference."""

import weakref
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors of nested lists and tuples."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def without_bytes(module: ModuleT) -> ModuleT:
    """Return a copy of the module whose parameters and buffers are made here: fake ones under fake tensors."""
    made: dict[int, Any] = {id(one): torch.empty(one.shape, dtype=one.dtype) for one in module.buffers()}
    for one in module.parameters():
        made[id(one)] = nn.Parameter(torch.empty(one.shape, dtype=one.dtype), one.requires_grad)
    return deepcopy(module, made)


class LiveBytes(TorchDispatchMode):
    """`now` and `peak` are bytes of all storages made inside, real or fake; `known` tensors count nothing.

    torch's own allocators agree to the byte on a CPU; a GPU's rounds blocks up to 512 bytes.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {storage_key(tensor): 0 for tensor in known}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch comes first, and ours sees its calls
        made = func(*args, **(kwargs or {}))
        for tensor in tensors_in(made):
            self._watch(tensor)
        return made

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
