"""Count the bytes of live tensors, from their operation to the end of their last reference."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override


class LiveBytes(TorchDispatchMode):
    """`now` and `peak` are bytes of all storages made inside, real or fake; `known` tensors count nothing.

    torch's own allocators agree to the byte on a CPU; a GPU's rounds blocks up to 512 bytes.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {_key(tensor): 0 for tensor in known}

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._watch(leaf)
        return made

    def _watch(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += self._sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
