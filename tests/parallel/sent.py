"""Messages between ranks, as torch's operators send them: kind, bytes of the input, and ranks of the group."""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "gather": ("allgather", "all_gather"),
    "scatter": ("reduce_scatter",),
    "reduce": ("allreduce", "all_reduce"),
    "exchange": ("alltoall", "all_to_all"),
    "send": ("send",),
}


class Message(NamedTuple):
    """One collective of a rank; `num_bytes` are those of its input, `stride` the distance of the group's ranks."""

    kind: str
    num_ranks: int
    num_bytes: int
    stride: int = 1

    @property
    def sent(self) -> float:
        """Return the bytes that leave a rank of a ring."""
        others = self.num_ranks - 1
        part = others / self.num_ranks
        whole = {"gather": others, "scatter": part, "reduce": 2 * part, "exchange": part, "send": 1}
        return whole[self.kind] * self.num_bytes


class Sent(TorchDispatchMode):
    """Notes the collectives of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[Message] = []

    def take(self) -> list[Message]:
        """Return the messages since the last call."""
        taken, self._messages = self._messages, []
        return taken

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _kind(func.__name__) if func.namespace in ("c10d", "_c10d_functional", "lmtrain") else None
        if kind:
            arguments = [*args, *(kwargs or {}).values()]
            self._messages.append(_by_name(kind, arguments) if func.namespace != "c10d" else _by_group(kind, arguments))
        return func(*args, **(kwargs or {}))


def _kind(operator: str) -> str | None:
    return next((kind for kind, names in KINDS.items() if operator.lstrip("_").startswith(names)), None)


def _by_group(kind: str, arguments: list[Any]) -> Message:
    """Read a c10d operator: outputs before inputs, but for an all-reduce, which is in place, and a send."""
    groups = [one for one in arguments if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())]
    found: Any = arguments[0 if kind in ("reduce", "send") else 1]
    tensor = found[0] if isinstance(found, list) else found
    return _message(kind, dist.ProcessGroup.unbox(groups[0]), tensor.nbytes)


def _by_name(kind: str, arguments: list[Any]) -> Message:
    """Read a functional operator: its input first, its group's name last."""
    name = next(one for one in arguments[::-1] if isinstance(one, str))
    return _message(kind, dist.distributed_c10d._resolve_process_group(name), arguments[0].nbytes)


def _message(kind: str, group: dist.ProcessGroup, num_bytes: int) -> Message:
    first, *others = dist.get_process_group_ranks(group)
    return Message(kind, len(others) + 1, num_bytes, others[0] - first if others else 1)
