"""The events of one rank's step in the order of their launch: kernels, messages, and waits for messages."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lmtrain.accounting.machine.hardware import MatmulDtype

Phase = Literal["forward", "backward", "step"]
MessageKind = Literal["gather", "scatter", "reduce", "exchange"]
# A rank's way of waiting: for weights at their first use, for gradients at the end, for all else at once.
Awaited = Literal["when used", "at the end", "at once"]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Computing on the device: FLOPs of products in a format (None: no product), and bytes read and written.

    `is_attention`: one fused kernel of scores, softmax and values.
    """

    flops: float
    num_bytes: float
    dtype: MatmulDtype | None = None
    phase: Phase = "forward"
    is_attention: bool = False


@dataclass(frozen=True, kw_only=True)
class Message:
    """A collective of `num_ranks` ranks, `stride` apart; `num_bytes` are those of one rank's input."""

    kind: MessageKind
    num_ranks: int
    num_bytes: int
    stride: int = 1
    awaited: Awaited = "at once"
    phase: Phase = "forward"

    @property
    def sent(self) -> float:
        """Return the bytes sent by one rank of a ring."""
        others = self.num_ranks - 1
        if self.kind == "gather":
            return others * self.num_bytes
        return (2 if self.kind == "reduce" else 1) * others / self.num_ranks * self.num_bytes


@dataclass(frozen=True)
class Wait:
    """Computing goes on once a message has arrived: the oldest of gathered weights, or all gradients but the last."""

    awaited: Awaited


Event = Kernel | Message | Wait


@dataclass(frozen=True, kw_only=True)
class MessageCount:
    """Equal messages of a step; numbers may be broken where blocks were repeated along a line."""

    kind: MessageKind
    num_ranks: int
    stride: int
    num_messages: float
    num_bytes: float
    sent_bytes: float


def count_messages(events: Iterable[Event]) -> tuple[MessageCount, ...]:
    """Add up a step's messages by kind and group, in order of kind and group."""
    numbers: Counter[tuple[MessageKind, int, int]] = Counter()
    num_bytes: Counter[tuple[MessageKind, int, int]] = Counter()
    sent: dict[tuple[MessageKind, int, int], float] = {}
    for event in events:
        if isinstance(event, Message):
            key = event.kind, event.num_ranks, event.stride
            numbers[key] += 1
            num_bytes[key] += event.num_bytes
            sent[key] = sent.get(key, 0.0) + event.sent
    return tuple(
        MessageCount(
            kind=kind,
            num_ranks=num_ranks,
            stride=stride,
            num_messages=numbers[kind, num_ranks, stride],
            num_bytes=num_bytes[kind, num_ranks, stride],
            sent_bytes=sent[kind, num_ranks, stride],
        )
        for kind, num_ranks, stride in sorted(numbers)
    )


def repeated(micro_steps: Sequence[Sequence[Event]], end: Sequence[Event], *, num_micro_steps: int) -> list[Event]:
    """Return the events of a whole step: the first micro-step as often as there are more, the last one, the end."""
    *others, last = micro_steps
    first = [event for events in others[:1] for event in events]
    return [*first * (num_micro_steps - 1), *last, *end]
