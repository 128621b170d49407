"""The events and memory of one rank, taken from the operations of its real step on real or fake tensors.

An operator of c10d carries its group, a functional one its group's name. FSDP2 gathers weights ahead of their use, and
sends gradients behind the backward pass.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group  # pyright: ignore[reportPrivateUsage]
from typing_extensions import override

from lmtrain.accounting.training_plan.simulated_step import Awaited, Event, Kernel, Message, MessageKind, Phase, Wait
from lmtrain.simulate.kernel_costs import Formats, kernels_of
from lmtrain.simulate.live_memory import Kind, KindsOfMemory, Operations, tensors_in

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


FILLS_GATHER = "all_gather_copy_in"
READS_GATHER = "split_with_sizes_copy"
FILLS_SCATTER = "chunk_cat"
OF_PHASE: dict[Phase, Kind] = {"forward": "activations", "backward": "workspace", "step": "workspace"}


@dataclass
class Recorded:
    """Events of a part of a step by phase, in order, and the fullest moments, bytes by kind.

    A phase has a moment between each two messages of its gradients, counted from 0.
    """

    events: list[Event] = field(default_factory=list[Event])
    moments: dict[tuple[Phase, int], Mapping[Kind, int]] = field(
        default_factory=dict[tuple[Phase, int], Mapping[Kind, int]]
    )

    @property
    def peaks(self) -> dict[Phase, Mapping[Kind, int]]:
        """Return the fullest moment of each phase."""
        by_size = sorted(self.moments.items(), key=lambda moment: sum(moment[1].values()))
        return {phase: kinds for (phase, _), kinds in by_size}


class Recorder(Operations):
    """Notes every operation as a kernel, a message or a wait, and the memory after it."""

    supports_higher_order_operators = True  # of compiled graphs, with operations booked as a whole

    def __init__(self, formats: Formats | None = None) -> None:
        super().__init__()
        self.memory = KindsOfMemory()
        self.recorded = Recorded()
        self.formats = formats or Formats()
        self._phase: Phase = "forward"
        self._fills_gather = self._is_paused = False
        self._num_sent = 0  # gradients' messages

    @contextmanager
    def during(self, phase: Phase) -> Generator[None]:
        """Book the following operations to a phase."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def taken(self) -> Recorded:
        """Return the record since the last call."""
        taken, self.recorded, self._num_sent = self.recorded, Recorded(), 0
        return taken

    def hold(self, tensors: Iterable[Tensor], kind: Kind) -> None:
        """Count tensors made before, or now known better, under a kind."""
        self.memory.hold(tensors, kind, again=True)

    @classmethod
    @override
    def ignore_compile_internals(cls) -> bool:
        """Let functions compile as they do without a recorder."""
        return True

    @contextmanager
    def graph(self, events: Iterable[Kernel | Message], *, peak: int) -> Generator[None]:
        """Book a compiled graph's events, and its `peak` of bytes beyond its inputs, for its operations."""
        self.recorded.events += [replace(event, phase=self._phase) for event in events]
        self._note_peak(beyond=peak)
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def keep(self, made: Any) -> None:
        """Count a graph's results."""
        self.memory.hold(tensors_in(made), OF_PHASE[self._phase])
        self._note_peak()

    @override
    def take(self, func: Any, arguments: list[Any], named: dict[str, Any], made: Any) -> None:
        if self._is_paused:
            return
        every = [*arguments, *named.values()]
        message = read_message(func, every, phase=self._phase, of_weights=self._fills_gather)
        if message is not None:
            self._fills_gather = False
            self.recorded.events.append(message)
            self.memory.hold(tensors_sent(func, every), "messages", again=self._phase != "step")
        else:
            self._take_kernel(func, arguments, named, made)
        self.memory.hold(tensors_in(made), OF_PHASE[self._phase])
        self._note_peak()
        self._num_sent += message is not None and message.kind == "scatter" and self._phase == "backward"

    def _take_kernel(self, func: Any, arguments: list[Any], named: dict[str, Any], made: Any) -> None:
        events = self.recorded.events
        if func.namespace == "fsdp":
            if FILLS_GATHER in func.__name__:
                self._fills_gather = True
                self.memory.hold(tensors_in(made), "messages")
            elif READS_GATHER in func.__name__:
                events.append(Wait("when used"))
                self.memory.hold(tensors_in(named.get("out", arguments[-1])), "gathered weights", again=True)
            elif FILLS_SCATTER in func.__name__:
                events.append(Wait("at the end"))
        events += kernels_of(func, arguments, named, made, phase=self._phase, formats=self.formats)

    def _note_peak(self, *, beyond: int = 0) -> None:
        now = dict(self.memory.now())
        now["workspace"] += beyond
        moment = self._phase, self._num_sent
        held = self.recorded.moments.get(moment)
        if held is None or sum(now.values()) > sum(held.values()):
            self.recorded.moments[moment] = now
