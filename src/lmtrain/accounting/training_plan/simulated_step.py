"""A simulated step: its events, their time on a device and its links, memory by kind, messages by group.

A kernel takes the longer of its FLOPs at the peak and its bytes at the memory's rate, each at a stated efficiency
(roofline.py). Ring messages take their bytes at the link's rate and a latency per hop. Weights are gathered one block
ahead of their use, as FSDP2 prefetches them; gradients are sent behind the next block's backward pass, one block at a
time; messages of tensor groups and of the optimizer are waited for at once.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.communication import group_rate
from lmtrain.errors import ConfigurationError

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


NUMBERS: Final = ("num_messages", "num_bytes", "sent_bytes")


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
    groups: dict[tuple[MessageKind, int, int], list[Message]] = {}
    for event in events:
        if isinstance(event, Message):
            groups.setdefault((event.kind, event.num_ranks, event.stride), []).append(event)
    return tuple(
        MessageCount(
            kind=kind,
            num_ranks=num_ranks,
            stride=stride,
            num_messages=len(messages),
            num_bytes=sum(one.num_bytes for one in messages),
            sent_bytes=sum(one.sent for one in messages),
        )
        for (kind, num_ranks, stride), messages in sorted(groups.items())
    )


def repeated(micro_steps: Sequence[Sequence[Event]], end: Sequence[Event], *, num_micro_steps: int) -> list[Event]:
    """Return the events of a whole step: the first micro-step as often as there are more, the last one, the end."""
    *others, last = micro_steps
    first = [event for events in others[:1] for event in events]
    return [*first * (num_micro_steps - 1), *last, *end]


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Shares of the data sheet's rates reached by kernels and messages, and the seconds of a launch and of a hop.

    One set for all devices, models and numbers of ranks, chosen once over the published rows of
    benchmarks/questions/simulated_fleets.py together; a hop and a launch are usual values, not fitted. Fused attention
    is taken as fast as products, as cuDNN's and FlashAttention 3 are on Hopper and FlashAttention 2 on Ampere;
    FlashAttention 2 reaches 0.35 of Hopper's peak (arXiv 2407.08608).
    """

    products: float = 0.6
    attention: float = 0.6
    memory: float = 0.7
    links: float = 0.75
    launch_seconds: float = 4e-6
    node_hop_seconds: float = 1e-6
    network_hop_seconds: float = 4e-6


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A device's rates on a cluster; `device` None is the cluster's own.

    Raises:
        ConfigurationError: The device, its peak or its links are not known.
    """

    cluster: Cluster
    efficiency: Efficiency = field(default_factory=Efficiency)
    device: Device | None = None

    def kernel_seconds(self, kernel: Kernel) -> float:
        """Return the longer of computing and moving, and a launch."""
        device = self.device or self.cluster.known_device
        if device is None:
            raise ConfigurationError(
                f"cluster.device must be in the hardware table, got {self.cluster.device}; set cluster=h100_8x."
            )
        share = self.efficiency.attention if kernel.is_attention else self.efficiency.products
        computing = kernel.flops / (self._peak(kernel.dtype) * share) if kernel.dtype else 0.0
        moving = kernel.num_bytes / (device.memory_bytes_per_second * self.efficiency.memory)
        return self.efficiency.launch_seconds + max(computing, moving)

    def message_seconds(self, message: Message) -> float:
        """Return the time of a ring's bytes at the slowest link on their way, and of its hops."""
        group = Collective(group="shards", num_ranks=message.num_ranks, stride=message.stride)
        rate = group_rate(self.cluster, group)
        if rate is None:
            raise ConfigurationError(
                f"cluster.network_bytes_per_second must be set for {self.cluster.num_nodes} nodes, as 400GB."
            )
        return message.sent / (rate * self.efficiency.links) + self._latency(message)

    def _peak(self, dtype: MatmulDtype) -> float:
        peak = self.device.peak_flops(dtype) if self.device else None
        stated = self.cluster.peak(dtype)
        if peak is None and stated is not None:
            peak = stated.flops
        if peak is None:
            raise ConfigurationError(
                f"the hardware table has no peak of {self.cluster.device} for {dtype}; set cluster.peak_flops to its "
                "dense peak in FLOP/s, or choose a precision with other products."
            )
        return peak

    def _latency(self, message: Message) -> float:
        """Return the seconds of a ring's hops; an all-reduce goes round twice."""
        rounds = 2 if message.kind == "reduce" else 1
        span = message.num_ranks * message.stride
        nodes = max(1, min(message.num_ranks, -(-span // self.cluster.devices_per_node)))
        across = nodes if nodes > 1 else 0
        within = message.num_ranks - 1 - max(0, across - 1)
        return rounds * (within * self.efficiency.node_hop_seconds + across * self.efficiency.network_hop_seconds)


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step: all of it, its computing, all its messages, and computing's waits for them."""

    seconds: float
    compute_seconds: float
    message_seconds: float

    @property
    def exposed_seconds(self) -> float:
        """Return the part of the step without computing."""
        return self.seconds - self.compute_seconds


def step_time(events: Iterable[Event], rates: Rates) -> StepTime:
    """Walk the events along computing's lane and the lanes of groups."""
    lanes = _Lanes(rates)
    for event in events:
        lanes.take(event)
    return lanes.end()


class _Lanes:
    """Computing's clock, each group's clock, and the messages under way."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._now = self._computed = self._sent = 0.0
        self._free: dict[tuple[int, int], float] = {}
        self._weights: deque[float] = deque()  # arrivals
        self._gradients: list[float] = []
        self._last_use = 0.0  # of gathered weights: from then on the next ones may come
        self._is_prefetched = False

    def take(self, event: Event) -> None:
        if isinstance(event, Kernel):
            seconds = self._rates.kernel_seconds(event)
            self._now += seconds
            self._computed += seconds
        elif isinstance(event, Wait):
            self._wait(event)
        elif event.num_ranks > 1:
            self._send(event)

    def _wait(self, wait: Wait) -> None:
        if wait.awaited == "when used":
            if self._weights:
                self._now = max(self._now, self._weights.popleft())
            self._last_use, self._is_prefetched = self._now, True
        else:
            self._now = max([self._now, *self._gradients[:-1]])

    def _send(self, message: Message) -> None:
        group = message.num_ranks, message.stride
        begin = self._last_use if message.awaited == "when used" and self._is_prefetched else self._now
        if message.awaited == "at the end" and message.kind == "reduce" and self._gradients:
            begin = max(begin, self._gradients[-1])  # copies are averaged once a shard is summed
        seconds = self._rates.message_seconds(message)
        arrival = max(begin, self._free.get(group, 0.0)) + seconds
        self._free[group] = arrival
        self._sent += seconds
        if message.awaited == "when used":
            self._weights.append(arrival)
        elif message.awaited == "at the end":
            self._gradients.append(arrival)
        else:
            self._now = arrival
        if message.phase == "step":  # the optimizer reads all gradients
            self._now = max([self._now, *self._gradients])

    def end(self) -> StepTime:
        seconds = max([self._now, *self._gradients, *self._weights])
        return StepTime(seconds=seconds, compute_seconds=self._computed, message_seconds=self._sent)


Peaks = Mapping[Any, Mapping[str, float]]  # by phase, or by phase and moment before the line is taken


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Figures of a model with some blocks; each block more adds the same to every one of them.

    `peaks` are bytes by kind at the fullest moment of each phase.
    """

    time: StepTime
    peaks: Peaks
    messages: Sequence[MessageCount]
    flops: float

    @property
    def peak_bytes(self) -> float:
        """Return the most bytes at once."""
        return max(sum(kinds.values()) for kinds in self.peaks.values())


@dataclass(frozen=True, kw_only=True)
class SimulatedFleet:
    """A simulated step of one rank among `batch.num_ranks`.

    `flops_per_token` are the model's by PaLM's count, `peak_flops` a device's for its products; `device_bytes` None
    where its memory is not known.
    """

    strategy: str
    batch: BatchPlan
    figures: StepFigures
    flops_per_token: float
    peak_flops: float
    device_bytes: int | None

    @property
    def tokens_per_second_per_device(self) -> float:
        """Return a device's share of the trained tokens."""
        return self.batch.tokens_per_step / self.figures.time.seconds / self.batch.num_ranks

    @property
    def mfu(self) -> float:
        """Return the model's FLOPs as a share of the dense peak."""
        return self.flops_per_token * self.tokens_per_second_per_device / self.peak_flops

    @property
    def fits(self) -> bool | None:
        """Return whether the fullest moment fits the device; None where its memory is not known."""
        return None if self.device_bytes is None else self.figures.peak_bytes <= self.device_bytes

    def efficiency(self, base: "SimulatedFleet") -> float:
        """Return the share of a smaller fleet's tokens a second and device."""
        return self.tokens_per_second_per_device / base.tokens_per_second_per_device

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        time = self.figures.time
        return {
            "strategy": self.strategy,
            "num_ranks": self.batch.num_ranks,
            "tokens_per_step": self.batch.tokens_per_step,
            "step_seconds": time.seconds,
            "compute_seconds": time.compute_seconds,
            "message_seconds": time.message_seconds,
            "exposed_seconds": time.exposed_seconds,
            "tokens_per_second_per_device": self.tokens_per_second_per_device,
            "mfu_palm": self.mfu,
            "peak_bytes": self.figures.peak_bytes,
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "memory": {phase: dict(kinds) for phase, kinds in self.figures.peaks.items()},
            "messages": [asdict(each) for each in self.figures.messages],
        }


def figures_of(events: Sequence[Event], peaks: Peaks, *, flops: float, rates: Rates) -> StepFigures:
    """Return the figures of recorded events."""
    return StepFigures(time=step_time(events, rates), peaks=peaks, messages=count_messages(events), flops=flops)


def by_phase(figures: StepFigures) -> StepFigures:
    """Return figures with moments (phase, number) put together: the fullest of each phase."""
    moments = sorted(figures.peaks.items(), key=lambda moment: sum(moment[1].values()))
    phases: dict[Phase, Mapping[str, float]] = {moment[0]: kinds for moment, kinds in moments}
    order: tuple[Phase, ...] = ("forward", "backward", "step")
    return replace(figures, peaks={phase: phases[phase] for phase in order if phase in phases})


def along_line(few: StepFigures, more: StepFigures, *, blocks: tuple[int, int], num_blocks: int) -> StepFigures:
    """Return the figures of a model of `num_blocks` alike blocks, from those of two numbers of `blocks`.

    No peak falls with more blocks: where it does from the first number to the second, work began to go in buckets.
    """
    first, second = blocks
    share = (num_blocks - first) / (second - first)

    def at(one: float, two: float) -> float:
        return one + share * (two - one)

    return StepFigures(
        time=StepTime(**{key: at(one, getattr(more.time, key)) for key, one in asdict(few.time).items()}),
        peaks={
            phase: {kind: max(two := more.peaks[phase][kind], at(size, two)) for kind, size in kinds.items()}
            for phase, kinds in few.peaks.items()
            if phase in more.peaks
        },
        messages=[
            replace(one, **{name: at(getattr(one, name), getattr(two, name)) for name in NUMBERS})
            for one, two in zip(few.messages, more.messages, strict=True)
        ],
        flops=at(few.flops, more.flops),
    )
