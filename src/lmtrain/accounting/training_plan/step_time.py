"""The time of a step's events on a device and its links: computing on one lane, each group's messages on another.

A kernel takes the longer of its FLOPs at the peak and its bytes at the memory's rate, each at a stated efficiency
(roofline.py). Ring messages take their bytes at the link's rate and a latency a hop. Weights are gathered one block
ahead of their use, as FSDP2 prefetches them; gradients are sent behind the next block's backward pass, one block at a
time; messages of tensor groups and of the optimizer are waited for at once.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.communication import group_rate
from lmtrain.accounting.training_plan.step_events import Event, Kernel, Message, Wait
from lmtrain.errors import ConfigurationError


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
                f"cluster.device={self.cluster.device} has no row in the hardware table, and a simulation takes its "
                "rates from there; choose cluster=h100_8x, or set cluster.device to a product's name."
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
                f"cluster.network_bytes_per_second has no value for {self.cluster.num_nodes} nodes of "
                f"cluster={self.cluster.name}; 400GB is eight links of 400 Gbit/s."
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
