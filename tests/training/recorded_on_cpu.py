"""What a CUDA graph does, done on a CPU: operations are recorded with the memory they read and write, then done again.

Nothing of Python happens in a replay: numbers are those of the recording, an address that is no longer used is still
written, and what the recording allocated holds nothing from one replay to the next.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class GraphOnCpu:
    """A `Graph` of lmtrain.training.micro_step_graph for tests."""

    def __init__(self, device: torch.device) -> None:
        self.num_replays = 0
        self._recorder = _Recorder()

    def prepare(self, work: Any, /) -> Any:
        return work()

    def capture(self, work: Any, /) -> Any:
        state = torch.get_rng_state()
        with self._recorder:
            result = work()
        torch.set_rng_state(state)
        self._recorder.undo()
        self._recorder.poison()
        return result

    def replay(self) -> None:
        self.num_replays += 1
        self._recorder.poison()
        self._recorder.replay()


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self._own: dict[int, Tensor] = {}  # one tensor by storage that the recording made
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # what was there already and was written to, and its copy

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a value was asked for while a graph was recorded")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = given if func._schema.is_mutable else []
        for tensor in written:
            if _memory(tensor) not in self._own:
                self._before.setdefault(_memory(tensor), (tensor.detach(), tensor.detach().clone()))
        result = func(*args, **kwargs)
        known = {_memory(tensor) for tensor in given}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and _memory(leaf) not in known]
        self._own |= {_memory(tensor): tensor.detach() for tensor in made}
        if made or written:
            self._calls.append((func, args, kwargs, made))
        return result

    def undo(self) -> None:
        """Take back what the recording wrote: a graph is recorded without being done."""
        for tensor, before in self._before.values():
            tensor.copy_(before)

    def poison(self) -> None:
        """Fill the recording's own memory with what no one may read."""
        for tensor in self._own.values():
            whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
            whole.fill_(float("nan") if whole.is_floating_point() else 0)

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            result = func(*args, **kwargs)
            if made:
                known = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
                anew = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and _memory(leaf) not in known]
                for recorded, tensor in zip(made, anew, strict=True):
                    recorded.detach().copy_(tensor)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
