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

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster
from lmtrain.accounting.machine.hardware import MATMUL_DTYPES, Device, MatmulDtype
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.model.flops import FlopsPerToken, block_forward_flops, product_flops
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.strategy import Collective
from lmtrain.accounting.training_plan.setting import Setting

PRODUCTS: Final = 0.74  # of the dense peak
PRODUCTS_DURING_MESSAGES: Final = 0.64  # several ranks: NCCL's kernels take multiprocessors and bandwidth
PRODUCTS_OF_EXPERTS: Final = 0.6  # of those of one dense product: many smaller ones, of uneven size; not fitted
MEMORY: Final = 0.88  # of the data sheet's bandwidth: a copy's on an H200
LINKS: Final = 0.75  # of the data sheet's rate
ATTENTION: Final = 0.5  # of the peak in long sequences; FlashAttention 2 on Ampere
UNFUSED_ATTENTION: Final = 0.1  # where scores go through memory; not fitted
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
# Moved for a number of a token's copy for an expert, forward and backward: copied in the order of experts and back, and
# in an expert group into messages, out of them and into the order of the local experts too. Counted, not fitted.
EXPERT_ROW_BYTES: Final = 20
EXCHANGED_ROW_BYTES: Final = 52
CAST_BYTES: Final = 3  # moved for an operand of a product in fp8: read and written, its scale in a kernel before
NEWTON_SCHULZ_FLOPS: Final = 30  # for a value of a hidden matrix and its shorter side: five iterations
BETWEEN: Final = 1.03  # the Trainer's step over its kernels
LAUNCH_SECONDS: Final = 4e-6
EAGER_LAUNCHES: Final = 160  # of a layer, forward and backward
NODE_HOP_SECONDS: Final = 1e-6
NETWORK_HOP_SECONDS: Final = 4e-6


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model whose step is timed: its shape, its parameters, and a token's FLOPs."""

    shape: ModelShape
    parameters: TrainedParameters
    flops: FlopsPerToken

    def recomputed_flops(self, setting: Setting, *, seen: float) -> float:
        """Return the FLOPs of a token's second forward pass, by PaLM's count."""
        num_block = self.parameters.num_block_matrix(self.shape)
        again = block_forward_flops(self.shape, num_block_parameters=num_block, seen=seen)
        return setting.recompute.share * again


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


def rates_of(setting: Setting) -> Rates | None:
    """Return the rates of the cluster's device, None where they are not known."""
    device = setting.cluster.known_device
    peaks = {dtype: peak.flops for dtype in MATMUL_DTYPES if (peak := setting.cluster.peak(dtype))}
    if device is None or not peaks or setting.bytes_of.matmul not in peaks:
        return None
    return Rates(
        device=device,
        cluster=setting.cluster,
        peaks={dtype: peaks.get(dtype, peaks[setting.bytes_of.matmul]) for dtype in MATMUL_DTYPES},
        is_alone=setting.num_ranks == 1,
        attention=None if setting.attention.is_fused else UNFUSED_ATTENTION,
    )


def modelled_step(
    setting: Setting, batch: BatchPlan, model: PlannedModel, sent: Sequence[Collective], *, rates: Rates | None = None
) -> StepTime | None:
    """Return the time of a step by its kernels and messages; None for a device or links of unknown rates.

    `rates` None are those of the cluster's device.
    """
    rates = rates or rates_of(setting)
    if rates is None:
        return None
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
    forward, backward = _computing(setting, batch, model, rates)
    micro, layers = batch.accumulation_micro_steps, _layers_of_a_rank(setting, model)
    per_pass = seconds["gathered"] / micro / 2  # half of it in each pass
    reduced = seconds["reduced"]
    passes = _overlapped(forward, per_pass, layers) + _overlapped(backward, per_pass, layers)
    last = _overlapped(forward, per_pass, layers) + _overlapped(backward, per_pass + reduced, layers)
    update = _updating(setting, batch, model, rates)
    computed = micro * (forward + backward)
    bubble = setting.spread.pipeline.bubble_share(micro)
    whole = ((micro - 1) * passes + last + seconds["waited"]) / (1 - bubble) + update
    return StepTime(
        seconds=BETWEEN * whole, compute_seconds=BETWEEN * (computed + update), message_seconds=sum(seconds.values())
    )


def _layers_of_a_rank(setting: Setting, model: PlannedModel) -> int:
    return max(1, len(model.shape.attention) // setting.spread.pipeline.num_stages)


def _computing(setting: Setting, batch: BatchPlan, model: PlannedModel, rates: Rates) -> tuple[float, float]:
    """Return the seconds of a micro-step's forward and backward pass on one rank."""
    shape, parameters, spread, matmul = model.shape, model.parameters, setting.spread, setting.bytes_of.matmul
    tokens = batch.micro_batch_tokens / (spread.tensor_ranks * spread.context_ranks * spread.pipeline.num_stages)
    if spread.pipeline.num_stages > 1:
        tokens *= setting.stages(shape, parameters).slowness
    num_head = parameters.num_head(shape)
    products = _products(setting, model, rates) * tokens
    head = rates.products(tokens * (2 * num_head), utilization_format(matmul))
    head_width = max((layer.head_width for layer in shape.attention), default=128)
    attended = rates.attention_share(head_width, batch.context_tokens) * rates.peaks["bf16"]
    attention = tokens * ((model.flops.causal - product_flops(shape)) / 3) / attended
    of_stream = STREAM_BYTES if setting.is_compiled else EAGER_STREAM_BYTES
    of_stream += WIDE_STREAM_BYTES * setting.has_wide_stream
    # Of a number of a token's copy for an expert, those of the fullest rank.
    of_row = EXPERT_ROW_BYTES if setting.spread.expert_ranks == 1 else EXCHANGED_ROW_BYTES * setting.expert_imbalance
    moved = len(shape.attention) * of_stream + shape.num_chosen_experts * of_row
    moved *= tokens * shape.width / rates.bandwidth / 3
    layers = _layers_of_a_rank(setting, model)
    launched = 0.0 if setting.is_compiled else layers * EAGER_LAUNCHES * LAUNCH_SECONDS / 3
    block = max(products + attention + moved, launched)
    of_score = SCORE_BYTES if setting.is_compiled else EAGER_SCORE_BYTES
    scored = num_head / max(1, shape.width) * of_score * tokens / rates.bandwidth
    again = setting.recompute.share * (products + attention + moved)
    trained = 1 - shape.num_frozen_matmul_parameters / max(1, shape.num_matmul_parameters)
    backward = (1 + trained) * products + EXECUTED_BACKWARD * attention + 2 * moved + again
    return block + head + scored / 2, max(backward, 2 * launched) + 2 * head + scored / 2


def _products(setting: Setting, model: PlannedModel, rates: Rates) -> float:
    """Return the seconds of a token's products in all layers; those of experts wait for the fullest rank's."""
    shape, parameters, matmul = model.shape, model.parameters, setting.bytes_of.matmul
    num_block = parameters.num_block_matrix(shape)
    num_waited = (setting.expert_imbalance - 1) * parameters.num_active_stacked(shape)
    has_experts = shape.num_active_parameters < shape.num_parameters
    seconds = rates.products(2 * (num_block + num_waited), matmul) / (PRODUCTS_OF_EXPERTS if has_experts else 1.0)
    if matmul == "fp8":
        active = num_block / max(1, parameters.num_hidden_matrix + parameters.num_frozen_block_matrix)
        seconds += 2 * parameters.num_long_edge * min(1.0, active) * CAST_BYTES / rates.bandwidth
    return seconds


def _updating(setting: Setting, batch: BatchPlan, model: PlannedModel, rates: Rates) -> float:
    """Return the seconds of the optimizer's step on one rank."""
    parameters, spread, work = model.parameters, setting.spread, setting.state.matrix_work
    shards = setting.num_shards(batch.num_ranks) * spread.tensor_ranks
    updated = parameters.num_trained / shards / spread.pipeline.num_stages
    flops = 0.0
    if work:
        hidden = parameters.num_hidden_matrix
        workers = setting.num_copies(batch.num_ranks) * shards if work.is_shared else 1
        flops = NEWTON_SCHULZ_FLOPS * hidden * (hidden / max(1, parameters.num_long_edge)) / workers
    return updated * UPDATE_BYTES / rates.bandwidth + rates.products(flops, "bf16")


def _overlapped(computing: float, sending: float, layers: int) -> float:
    """Return the seconds of a pass whose messages go behind its computing, but for those of one block."""
    return max(computing, sending) + min(computing, sending) / layers


def group_rate(cluster: Cluster, sent: Collective) -> float | None:
    """Return the bytes per second and device of a group, None unknown; beyond a node, groups share its network.

    A ring enters and leaves a node once: its bytes cross the network as often as one device sends them; rings
    starting at each network card share them out. Source: NCCL's rings, one for each card. In an exchange all devices
    of a node send to those of others at once, and to one another.
    """
    device, in_a_node = cluster.known_device, cluster.devices_per_node
    link = device.link_bytes_per_second if device else None
    if link is None or cluster.num_nodes == 1 or in_a_node % (sent.stride * sent.num_ranks) == 0:
        return link
    network = cluster.node_bytes_per_second
    if network is None:
        return None
    if not sent.is_exchange:
        return min(link, network / min(sent.stride, in_a_node))
    near = max(1, min(sent.num_ranks, in_a_node // sent.stride))
    far_share = (sent.num_ranks - near) / (sent.num_ranks - 1)
    return 1 / max((1 - far_share) / link, far_share * in_a_node / network)
