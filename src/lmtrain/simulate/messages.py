"""Collectives as torch's operators send them: kind, bytes of a rank's input, and the ranks of the group.

An operator of c10d carries its group, a functional one its group's name. FSDP2 gathers weights ahead of their use,
and sends gradients behind the backward pass.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore[reportPrivateUsage]

from lmtrain.accounting.training_plan.step_events import Awaited, Message, MessageKind, Phase

SPACES: Final = ("c10d", "_c10d_functional")
KINDS: Final[Mapping[MessageKind, tuple[str, ...]]] = {
    "gather": ("allgather", "all_gather"),
    "scatter": ("reduce_scatter",),
    "reduce": ("allreduce", "all_reduce"),
    "exchange": ("alltoall", "all_to_all"),
}


def read_message(func: Any, arguments: list[Any], *, phase: Phase, of_weights: bool = False) -> Message | None:
    """Return an operator's message, None for other operators; `of_weights`: FSDP2 has just filled its input."""
    kind = _kind(func)
    if kind is None:
        return None
    objects = [one for one in arguments if isinstance(one, torch.ScriptObject)]
    carried = [dist.ProcessGroup.unbox(one) for one in objects[:1]]  # the group first, then its operation
    tensor = arguments[1 if carried and kind != "reduce" else 0]
    ranks = dist.get_process_group_ranks(carried[0] if carried else _named_group(arguments))
    return Message(
        kind=kind,
        num_ranks=len(ranks),
        stride=ranks[1] - ranks[0] if len(ranks) > 1 else 1,
        num_bytes=(tensor[0] if isinstance(tensor, list) else tensor).nbytes,
        awaited=_awaited(kind, phase, is_functional=not carried, of_weights=of_weights),
        phase=phase,
    )


def _named_group(arguments: list[Any]) -> dist.ProcessGroup:
    name: Any = next(one for one in arguments[::-1] if isinstance(one, str))
    return _resolve_process_group(name)


def _kind(func: Any) -> MessageKind | None:
    if func.namespace not in SPACES:
        return None
    name = func.__name__.lstrip("_")
    return next((kind for kind, names in KINDS.items() if name.startswith(names)), None)


def _awaited(kind: MessageKind, phase: Phase, *, is_functional: bool, of_weights: bool) -> Awaited:
    if of_weights and kind == "gather":
        return "when used"
    return "at the end" if phase == "backward" and not is_functional else "at once"


def tensors_sent(func: Any, arguments: list[Any]) -> list[Tensor]:
    """Return a message's tensors, outputs and inputs."""
    found: list[Tensor] = []
    for one in arguments:
        found += [one] if isinstance(one, Tensor) else []
        found += [each for each in one if isinstance(each, Tensor)] if isinstance(one, list) else []
    return found if func.namespace in SPACES else []
