"""How long a step should take before one was measured: its FLOPs over the peak, at a utilization stated or usual.

On one Hopper GPU part by part: products and attention by their FLOPs, the rest by the bytes that it moves. The shares
and bytes are those of two runs under torch's profiler on an NVIDIA H200 (2026-11-26, docs/log.md): Llama 3.2 1B and
GPT-2 124M with AdamW. Attention 128 wide was not among them: FlashAttention-3's figures of an H100 (arXiv
2407.08608), forward and backward together.
"""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Rate
from lmtrain.accounting.cluster import ASSUMED_MFU, Cluster, Peak
from lmtrain.accounting.machine.hardware import Device
from lmtrain.accounting.model.flops import FlopsPerToken, product_flops
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.model.optimizer_state import BF16_BYTES, FP32_BYTES
from lmtrain.accounting.observed.measured import Calibration
from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.communication import CommunicationVolume
from lmtrain.accounting.training_plan.plan import Speed
from lmtrain.accounting.training_plan.utilization import training_seconds

HOPPER_SOURCE: Final = "assumed, by the shares of its peaks that an H200 reached"
HOPPER: Final = ("NVIDIA H100", "NVIDIA H200", "NVIDIA GH200")
PRODUCTS: Final = 0.74  # of the dense peak; 0.736 and 0.741
NARROW_ATTENTION, WIDE_ATTENTION, WIDE_HEAD = 0.32, 0.45, 128  # of the peak; 0.332 and 0.297 at head width 64
EXECUTED: Final = 14 / 12  # of attention's products: its backward pass computes the scores again
MEMORY: Final = 0.88  # of the data sheet's bandwidth: a copy's
STREAM_BYTES: Final = 187  # of a token for each layer and number of the residual stream; 207 and 167
STREAM_MOVES: Final = (
    12  # reads and writes of the stream and its gradient by a layer's two norms and additions, counted
)
SCORE_BYTES: Final = 6.6  # of a logit; 6.5 and 6.6, our kernel by itself
UPDATE_BYTES: Final = 53  # of a parameter and step, for its norm, AdamW and its copy in bf16; 53 and 54
BETWEEN: Final = 1.03  # the Trainer's step over its kernels; 1.01 and 1.04


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """A step's computing: the model, the width of its residual stream, a token's FLOPs, logits and FLOPs done again.

    `has_wide_stream`: in fp32, each move two bytes more than in the measured runs.
    """

    shape: ModelShape
    width: int
    flops: FlopsPerToken
    num_logits: float
    recomputed_flops: float
    num_tokens: int
    has_wide_stream: bool = False


def expected_speed(
    cluster: Cluster,
    peak: Peak | None,
    batch: BatchPlan,
    *,
    flops_per_token: float,
    calibration: Calibration | None = None,
    sent: CommunicationVolume | None = None,
    recomputed_flops: float = 0.0,
    bubble_share: float = 0.0,
    offload_seconds: float = 0.0,
    by_parts: float | None = None,
) -> Speed | None:
    """Return the time of a step at the cluster's stated utilization, or a usual one; None without a peak.

    `flops_per_token` is PaLM's; `recomputed_flops` are a token's extra ones, for tensors its backward pass computes
    again. A stated utilization is the model's (MFU), the usual one the hardware's (HFU). A `calibration` of this very
    config comes before the usual share. Where nothing is stated a step takes no less than its links do for the `sent`
    bytes, perhaps during all of its computing. `bubble_share` of a step is idle in a pipeline, named next to a stated
    utilization and taken off the usual one. `offload_seconds` of a step move optimizer state from host memory and back,
    where no utilization is stated. `by_parts` are the seconds of a step by its parts, in place of the usual share.
    """
    if peak is None:
        return None
    per_model_flop = 1 + recomputed_flops / flops_per_token
    if calibration is not None and cluster.mfu is None:
        mfu = batch.tokens_per_step * flops_per_token / (peak.flops * batch.num_ranks * calibration.step_seconds)
        source = f"measured over {format_count(calibration.num_steps, 'step')} by lmtrain doctor"
        return Speed(
            step_seconds=calibration.step_seconds,
            mfu_palm=mfu,
            hfu_palm=mfu * per_model_flop,
            source=source,
            setup_seconds=calibration.setup_seconds,
        )
    mfu, source = (cluster.mfu, "cluster.mfu") if cluster.mfu else (ASSUMED_MFU / per_model_flop, "assumed")
    if by_parts and not cluster.mfu:
        mfu, source = batch.tokens_per_step * flops_per_token / (peak.flops * by_parts), HOPPER_SOURCE
    if bubble_share:
        source = f"{source}, a bubble of {bubble_share:.1%} of the step"
        mfu *= 1 if cluster.mfu else 1 - bubble_share
    flops = batch.tokens_per_step * flops_per_token
    seconds = training_seconds(flops, peak_flops=peak.flops, num_devices=batch.num_ranks, utilization=mfu)
    link_seconds = sent.seconds if sent else None
    if link_seconds is not None and link_seconds > seconds:
        if cluster.mfu:
            source = f"cluster.mfu, although the links of this strategy take {link_seconds:.3g} s"
        else:
            mfu, source = mfu * seconds / link_seconds, f"its links take longer than at {mfu:.0%} MFU, assumed"
            seconds = link_seconds
    if offload_seconds and not cluster.mfu:
        mfu *= seconds / (seconds + offload_seconds)
        seconds += offload_seconds
        source = f"{source}, and {offload_seconds:.2g} s for the state's way from host memory and back"
    return Speed(step_seconds=seconds, mfu_palm=mfu, hfu_palm=mfu * per_model_flop, source=source)


def rate_of(cluster: Cluster, speed: Speed | None, *, num_ranks: int, seconds_beside: float = 0.0) -> Rate:
    """Return the basis of a budget of time: this speed, None if unknown, and the price of all devices.

    `seconds_beside` come with each step.
    """
    price = cluster.usd_per_gpu_hour
    return Rate(
        seconds_per_step=speed.step_seconds + seconds_beside if speed else None,
        setup_seconds=speed.setup_seconds if speed else 0.0,
        usd_per_hour=None if price is None else price * num_ranks,
    )


def hopper_seconds(work: StepWork, device: Device | None, peak: Peak | None) -> float | None:
    """Return the seconds of a step; None for other devices, without a peak, and for a mixture of experts."""
    shape = work.shape
    if (
        peak is None
        or device is None
        or not device.name.startswith(HOPPER)
        or shape.num_active_parameters < shape.num_parameters
    ):
        return None
    products = product_flops(shape)
    is_wide = max((layer.head_width for layer in shape.attention), default=0) >= WIDE_HEAD
    attention_share = WIDE_ATTENTION if is_wide else NARROW_ATTENTION
    computing = (products + work.recomputed_flops) / PRODUCTS
    computing += EXECUTED * (work.flops.causal - products) / attention_share
    of_stream = STREAM_BYTES + (FP32_BYTES - BF16_BYTES) * STREAM_MOVES * work.has_wide_stream
    moved = len(shape.attention) * work.width * of_stream + work.num_logits * SCORE_BYTES
    bandwidth = MEMORY * device.memory_bytes_per_second
    updated = UPDATE_BYTES * (shape.num_parameters - shape.num_frozen_parameters) / bandwidth
    return BETWEEN * (work.num_tokens * (computing / peak.flops + moved / bandwidth) + updated)
