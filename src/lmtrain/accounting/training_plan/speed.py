"""The speed that a plan expects: stated, modelled by kernels and messages, or assumed for want of these."""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Rate
from lmtrain.accounting.cluster import ASSUMED_MFU, Cluster, Peak
from lmtrain.accounting.machine.hardware import MATMUL_DTYPES
from lmtrain.accounting.model.flops import FlopsPerToken, block_forward_flops, product_flops
from lmtrain.accounting.model.memory import TrainedParameters
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.strategy import Collective, Stream
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.accounting.training_plan.step_time import (
    NEWTON_SCHULZ_FLOPS,
    Rates,
    StepTime,
    StepWork,
    group_rate,
    step_time,
)

MODELLED: Final = "modelled by kernels and messages"
UNFUSED_ATTENTION: Final = 0.1  # of the peak, where scores go through memory; not fitted


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Expected seconds of an optimizer step, its share of the peak, and the source of the figure.

    `mfu_palm` counts the model's FLOPs, `hfu_palm` also those of recomputation, None where they are not known.
    """

    step_seconds: float
    mfu_palm: float
    source: str
    hfu_palm: float | None = None


@dataclass(frozen=True, kw_only=True)
class CommunicationVolume:
    """One device's bytes sent for one optimizer step, by group; `seconds` None where a link's rate is unknown."""

    groups: tuple[Collective, ...] = ()
    seconds: float | None = None

    @property
    def gathered_bytes(self) -> int:
        """Add up what is gathered or exchanged."""
        return round(sum(group.gathered_bytes for group in self.groups))

    @property
    def reduced_bytes(self) -> int:
        """Add up the gradients."""
        return round(sum(group.reduced_bytes for group in self.groups))

    @property
    def total_bytes(self) -> int:
        """Add all groups up."""
        return self.gathered_bytes + self.reduced_bytes


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model whose step is timed: its shape, its parameters, a token's FLOPs, and its heads of keys per head."""

    shape: ModelShape
    parameters: TrainedParameters
    flops: FlopsPerToken
    share_of_kv_heads: float = 1.0

    @property
    def num_block(self) -> int:
        """Return the parameters in matrices of the blocks active for one token."""
        return self.parameters.num_block_matrix(self.shape)

    @property
    def num_head(self) -> int:
        """Return the parameters of the head, tied or not."""
        return self.parameters.num_head(self.shape)

    def recomputed_flops(self, setting: Setting, *, seen: float) -> float:
        """Return the FLOPs of a token's second forward pass, by PaLM's count."""
        again = block_forward_flops(self.shape, num_block_parameters=self.num_block, seen=seen)
        return setting.recompute.share * again


def sent_in_step(setting: Setting, batch: BatchPlan, model: PlannedModel) -> CommunicationVolume:
    """Return a device's bytes sent in a step, and how long they take at the rates of their links."""
    value_bytes, shape = setting.bytes_of.activations, model.shape
    of_tokens = batch.micro_batch_tokens * value_bytes
    heads = sum(layer.num_heads * layer.head_width for layer in shape.attention)
    stream = Stream(
        num_tokens=batch.micro_batch_tokens,
        num_bytes=of_tokens * shape.width,
        num_layers=len(shape.attention),
        share_again=setting.recompute.share,
        attention_bytes=of_tokens * heads * (2 + 2 * model.share_of_kv_heads),
        kv_bytes=of_tokens * heads * 2 * model.share_of_kv_heads,
    )
    groups = tuple(
        setting.spread.collectives(
            num_ranks=batch.num_ranks,
            gathered=shape.num_parameters * value_bytes,
            num_gradients=shape.num_parameters - shape.num_frozen_parameters,
            micro_steps=batch.accumulation_micro_steps,
            stream=stream,
            num_summed=model.parameters.num_whole_in_groups,
        )
    )
    rates = [group_rate(setting.cluster, group) for group in groups]
    times = [group.num_bytes / rate for group, rate in zip(groups, rates, strict=True) if rate]
    return CommunicationVolume(groups=groups, seconds=sum(times) if len(times) == len(groups) else None)


def modelled_step(
    setting: Setting, batch: BatchPlan, model: PlannedModel, sent: CommunicationVolume
) -> StepTime | None:
    """Return the time of a step by its kernels and messages; None for a device or links of unknown rates."""
    rates = rates_of(setting)
    if rates is None:
        return None
    pipeline, steps = setting.spread.pipeline, batch.accumulation_micro_steps
    return step_time(work_of(setting, batch, model), sent.groups, rates, bubble_share=pipeline.bubble_share(steps))


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


def work_of(setting: Setting, batch: BatchPlan, model: PlannedModel) -> StepWork:
    """Return the computing of one rank in a step."""
    shape, parameters, spread, matmul = model.shape, model.parameters, setting.spread, setting.bytes_of.matmul
    parts = spread.tensor_ranks * spread.context_ranks * spread.pipeline.num_stages
    layers = len(shape.attention)
    shards = setting.num_shards(batch.num_ranks) * spread.tensor_ranks
    hidden, state = parameters.num_hidden_matrix, setting.state
    short_side = hidden / max(1, parameters.num_long_edge)
    works = setting.num_copies(batch.num_ranks) * shards if state.matrix_work and state.matrix_work.is_shared else 1
    active = model.num_block / max(1, hidden + parameters.num_frozen_block_matrix)
    return StepWork(
        tokens=batch.micro_batch_tokens / parts,
        num_layers=max(1, layers // spread.pipeline.num_stages),
        num_micro_steps=batch.accumulation_micro_steps,
        block_flops=2 * model.num_block,
        head_flops=2 * model.num_head,
        attention_flops=(model.flops.causal - product_flops(shape)) / 3,
        stream_numbers=layers * shape.width,
        num_logits=model.num_head / max(1, shape.width),
        num_updated=parameters.num_trained / shards / spread.pipeline.num_stages,
        matmul=matmul,
        head_dtype="bf16" if matmul == "fp8" else matmul,
        context_tokens=batch.context_tokens,
        head_width=max((layer.head_width for layer in shape.attention), default=128),
        recomputed=setting.recompute.share,
        trained=1 - shape.num_frozen_matmul_parameters / max(1, shape.num_matmul_parameters),
        cast_numbers=2 * parameters.num_long_edge * min(1.0, active) if matmul == "fp8" else 0.0,
        update_flops=NEWTON_SCHULZ_FLOPS * hidden * short_side / works if state.matrix_work else 0.0,
        is_compiled=setting.is_compiled,
        has_wide_stream=setting.has_wide_stream,
        has_experts=shape.num_active_parameters < shape.num_parameters,
    )


def expected_speed(
    cluster: Cluster,
    peak: Peak | None,
    batch: BatchPlan,
    *,
    flops_per_token: float,
    modelled: StepTime | None = None,
    recomputed_flops: float = 0.0,
    offload_seconds: float = 0.0,
) -> Speed | None:
    """Return the time of a step; None without a peak.

    `flops_per_token` is PaLM's; `recomputed_flops` are a token's extra ones, for tensors its backward pass computes
    again. A stated utilization (`cluster.mfu`) is the model's; it comes first, then the `modelled` step, then a usual
    share of the peak, the hardware's. `offload_seconds` of a step move optimizer state from host memory and back. No
    step does its FLOPs beyond the peak.
    """
    if peak is None:
        return None
    again = 1 + recomputed_flops / flops_per_token
    flops = batch.tokens_per_step * flops_per_token
    at_peak = flops / (peak.flops * batch.num_ranks)
    if cluster.mfu:
        seconds, source = at_peak / cluster.mfu, "cluster.mfu"
    elif modelled is not None:
        seconds, source = modelled.seconds, MODELLED
    else:
        seconds, source = at_peak * again / ASSUMED_MFU, f"{ASSUMED_MFU:.0%} of the peak, assumed"
    if offload_seconds and not cluster.mfu:
        seconds += offload_seconds
        source = f"{source}, and {offload_seconds:.2g} s for the state's way from host memory and back"
    mfu = min(1.0, at_peak / seconds)
    if modelled is not None and source.startswith(MODELLED):
        mfu = min(mfu, 1 / again)
        seconds = at_peak / mfu
    return Speed(step_seconds=seconds, mfu_palm=mfu, hfu_palm=min(1.0, mfu * again), source=source)


def rate_of(cluster: Cluster, speed: Speed | None, *, num_ranks: int, extra_seconds: float = 0.0) -> Rate:
    """Return the basis of a budget of time: this speed, None if unknown, and the price of all devices.

    `extra_seconds` are added to each step.
    """
    price = cluster.usd_per_gpu_hour
    return Rate(
        seconds_per_step=speed.step_seconds + extra_seconds if speed else None,
        usd_per_hour=None if price is None else price * num_ranks,
    )
