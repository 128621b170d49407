"""How long a step takes: kernels by their FLOPs and bytes, messages by their links, and what hides behind what.

Products take their FLOPs at a share of the peak, all other kernels the bytes that they move at a share of the memory's
bandwidth; messages go round rings, with a latency for each hop. Weights are gathered one block ahead of their use, and
gradients sent behind the next block's backward pass, as FSDP2 and DDP do; messages of tensor and context groups are
waited for. `lmtrain plan`, its advice and `lmtrain simulate` all use this model. The shares were fitted to the rows
marked so in benchmarks/results/plan_accuracy.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.options.strategy import Collective

PRODUCTS: Final = 0.74  # of the dense peak
PRODUCTS_DURING_MESSAGES: Final = 0.64  # several ranks: NCCL's kernels take multiprocessors and bandwidth
PRODUCTS_OF_EXPERTS: Final = 0.6  # of those of one dense product: many smaller ones, of uneven size; not fitted
MEMORY: Final = 0.88  # of the data sheet's bandwidth: a copy's on an H200
LINKS: Final = 0.75  # of the data sheet's rate
ATTENTION: Final = 0.5  # of the peak in long sequences; FlashAttention 2 on Ampere
ATTENTION_ON_HOPPER: Final = {64: 0.32, 128: 0.45}  # by head width: an H200's, and arXiv 2407.08608
HOPPER: Final = ("NVIDIA H100", "NVIDIA H200", "NVIDIA H20", "NVIDIA H800", "NVIDIA GH200")
HALF_SPEED_TOKENS: Final = 256  # sequences so short have half the rate of attention
EXECUTED_BACKWARD: Final = 2.5  # of the forward pass of attention: its backward pass computes the scores again
STREAM_BYTES: Final = 187  # moved for a token by each layer and number of the residual stream, compiled, on an H200
EAGER_STREAM_BYTES: Final = 430  # the same without a compiler; fitted
WIDE_STREAM_BYTES: Final = 24  # more where the stream is in fp32: twelve reads and writes of two bytes
SCORE_BYTES: Final = 6.6  # moved for a logit
EAGER_SCORE_BYTES: Final = 40
UPDATE_BYTES: Final = 53  # moved for a parameter and step: the norm, AdamW, and the copy in bf16
CAST_BYTES: Final = 3  # moved for an operand of a product in fp8: read and written, its scale in a kernel before
NEWTON_SCHULZ_FLOPS: Final = 30  # for a value of a hidden matrix and its shorter side: five iterations
BETWEEN: Final = 1.03  # the Trainer's step over its kernels
LAUNCH_SECONDS: Final = 4e-6
EAGER_LAUNCHES: Final = 160  # of a layer, forward and backward
NODE_HOP_SECONDS: Final = 1e-6
NETWORK_HOP_SECONDS: Final = 4e-6


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One rank's computing: its tokens of a micro-step, what a token costs, and what the rank updates at the end.

    FLOPs and moved numbers are a token's, forward pass only: `block_flops` of the blocks' products, `head_flops`,
    `attention_flops` by the causal count. `recomputed` is the share of blocks with a second forward pass,
    `trained` that of weights with a gradient.
    `cast_numbers` are a token's operands of products in fp8, `head_dtype` the format of the head's products.
    """

    tokens: float
    num_layers: int
    num_micro_steps: int
    block_flops: float
    head_flops: float
    attention_flops: float
    stream_numbers: float
    num_logits: float
    num_updated: float
    matmul: MatmulDtype
    head_dtype: MatmulDtype
    context_tokens: int = 8192
    head_width: int = 128
    recomputed: float = 0.0
    trained: float = 1.0
    cast_numbers: float = 0.0
    update_flops: float = 0.0
    is_compiled: bool = True
    has_wide_stream: bool = False
    has_experts: bool = False


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of a step: all of it, its computing, and all its messages."""

    seconds: float
    compute_seconds: float
    message_seconds: float

    @property
    def exposed_seconds(self) -> float:
        """Return the part of the step without computing."""
        return max(0.0, self.seconds - self.compute_seconds)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A device's rates on a cluster; `peaks` are dense FLOP/s by format, `attention` the share of its kernel."""

    device: Device
    cluster: Cluster
    peaks: dict[MatmulDtype, float]
    is_alone: bool
    attention: float | None = None

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second that kernels move."""
        return MEMORY * self.device.memory_bytes_per_second

    def products(self, flops: float, dtype: MatmulDtype) -> float:
        """Return the seconds of products."""
        share = PRODUCTS if self.is_alone else PRODUCTS_DURING_MESSAGES
        return flops / (share * self.peaks[dtype])

    def attention_share(self, head_width: int, context_tokens: int) -> float:
        """Return the share of the peak that fused attention reaches: by device, head width and length."""
        share = self.attention
        if share is None:
            is_hopper = self.device.name.startswith(HOPPER)
            share = ATTENTION_ON_HOPPER[128 if head_width >= 128 else 64] if is_hopper else ATTENTION
        return share * context_tokens / (context_tokens + HALF_SPEED_TOKENS)

    def message_seconds(self, sent: Collective) -> float | None:
        """Return the seconds of a group's messages in a step; None where the rate of a link is not known."""
        rate = group_rate(self.cluster, sent)
        if rate is None:
            return None
        return sent.num_bytes / (rate * LINKS) + (sent.num_gathers + sent.num_reductions) * self._hops(sent)

    def _hops(self, sent: Collective) -> float:
        """Return the latency of one ring: its hops within nodes, and those between them."""
        span = sent.num_ranks * sent.stride
        nodes = max(1, min(sent.num_ranks, -(-span // self.cluster.devices_per_node)))
        across = nodes if nodes > 1 else 0
        within = sent.num_ranks - 1 - max(0, across - 1)
        return within * NODE_HOP_SECONDS + across * NETWORK_HOP_SECONDS


def step_time(
    work: StepWork, sent: Sequence[Collective], rates: Rates, *, bubble_share: float = 0.0
) -> StepTime | None:
    """Return the time of a step; None where a message's link has no known rate."""
    seconds: dict[str, float] = dict.fromkeys(("gathered", "reduced", "waited"), 0.0)
    for each in sent:
        took = rates.message_seconds(each)
        if took is None:
            return None
        share = each.gathered_bytes / each.num_bytes if each.num_bytes else 0.0
        if each.is_awaited:
            seconds["waited"] += took
        else:
            seconds["gathered"] += took * share
            seconds["reduced"] += took * (1 - share)
    forward, backward = computing(work, rates)
    micro, layers = work.num_micro_steps, max(1, work.num_layers)
    per_pass = seconds["gathered"] / micro / 2  # half of it in each pass
    reduced = seconds["reduced"]
    passes = _overlapped(forward, per_pass, layers) + _overlapped(backward, per_pass, layers)
    last = _overlapped(forward, per_pass, layers) + _overlapped(backward, per_pass + reduced, layers)
    update = updating(work, rates)
    computed = micro * (forward + backward)
    whole = ((micro - 1) * passes + last + seconds["waited"]) / (1 - bubble_share) + update
    return StepTime(
        seconds=BETWEEN * whole, compute_seconds=BETWEEN * (computed + update), message_seconds=sum(seconds.values())
    )


def computing(work: StepWork, rates: Rates) -> tuple[float, float]:
    """Return the seconds of a micro-step's forward and backward pass on one rank."""
    share = PRODUCTS_OF_EXPERTS if work.has_experts else 1.0
    products = rates.products(work.tokens * work.block_flops, work.matmul) / share
    products += work.tokens * work.cast_numbers * CAST_BYTES / rates.bandwidth
    head = rates.products(work.tokens * work.head_flops, work.head_dtype)
    attended = rates.attention_share(work.head_width, work.context_tokens) * rates.peaks["bf16"]
    attention = work.tokens * work.attention_flops / attended
    of_stream = STREAM_BYTES if work.is_compiled else EAGER_STREAM_BYTES
    of_stream += WIDE_STREAM_BYTES * work.has_wide_stream
    moved = work.tokens * work.stream_numbers * of_stream / rates.bandwidth / 3
    launched = 0.0 if work.is_compiled else work.num_layers * EAGER_LAUNCHES * LAUNCH_SECONDS / 3
    block = max(products + attention + moved, launched)
    scored = work.num_logits * (SCORE_BYTES if work.is_compiled else EAGER_SCORE_BYTES) * work.tokens / rates.bandwidth
    again = work.recomputed * (products + attention + moved)
    backward = (1 + work.trained) * products + EXECUTED_BACKWARD * attention + 2 * moved + again
    return block + head + scored / 2, max(backward, 2 * launched) + 2 * head + scored / 2


def updating(work: StepWork, rates: Rates) -> float:
    """Return the seconds of the optimizer's step on one rank."""
    return work.num_updated * UPDATE_BYTES / rates.bandwidth + rates.products(work.update_flops, "bf16")


def _overlapped(computing: float, sending: float, layers: int) -> float:
    """Return the seconds of a pass whose messages go behind its computing, but for those of one block."""
    return max(computing, sending) + min(computing, sending) / layers


def group_rate(cluster: Cluster, sent: Collective) -> float | None:
    """Return the bytes per second and device of a group, None unknown; beyond a node, groups share its network.

    A ring enters and leaves a node once: its bytes cross the network as often as one device sends them; rings
    starting at each network card share them out. Source: NCCL's rings, one for each card.
    """
    device, in_a_node = cluster.known_device, cluster.devices_per_node
    link = device.link_bytes_per_second if device else None
    if link is None or cluster.num_nodes == 1 or in_a_node % (sent.stride * sent.num_ranks) == 0:
        return link
    network = cluster.node_bytes_per_second
    return None if network is None else min(link, network / min(sent.stride, in_a_node))
