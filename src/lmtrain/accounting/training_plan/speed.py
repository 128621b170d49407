"""The speed that a plan expects: stated, modelled by kernels and messages, or assumed for want of these."""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import ASSUMED_MFU, Cluster, Peak
from lmtrain.accounting.model.optimizer_state import FP32_BYTES
from lmtrain.accounting.options.strategy import Collective, Stream
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.accounting.training_plan.step_time import PlannedModel, StepTime, group_rate

MODELLED: Final = "modelled by kernels and messages"


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
    def total_bytes(self) -> int:
        """Add all groups up."""
        gathered, reduced = (
            sum(getattr(one, way) for one in self.groups) for way in ("gathered_bytes", "reduced_bytes")
        )
        return round(gathered) + round(reduced)


def sent_in_step(setting: Setting, batch: BatchPlan, model: PlannedModel) -> CommunicationVolume:
    """Return a device's bytes sent in a step, and how long they take at the rates of their links."""
    value_bytes, shape = setting.bytes_of.activations, model.shape
    of_tokens, stages = batch.micro_batch_tokens * value_bytes, setting.stages(shape, model.parameters)
    heads = sum(layer.num_heads * layer.head_width for layer in shape.attention)
    kv_bytes = setting.kv_bytes(shape.attention, batch.micro_batch_tokens)
    stream = Stream(
        num_tokens=batch.micro_batch_tokens,
        num_bytes=of_tokens * shape.width,
        num_layers=len(shape.attention),
        share_again=setting.recompute.share,
        attention_bytes=2 * of_tokens * heads + kv_bytes,
        kv_bytes=kv_bytes,
        num_kv_heads=setting.num_kv_heads(shape.attention),
        num_future_tokens=setting.num_future_tokens,
        expert_bytes=of_tokens * shape.width * shape.num_chosen_experts * setting.expert_imbalance,
        stage_bytes=setting.stream_bytes(batch, shape),
        tied_bytes=stages.num_tied * FP32_BYTES / setting.spread.tensor_ranks,
    )
    groups = tuple(
        setting.spread.collectives(
            num_ranks=batch.num_ranks,
            gathered=setting.gathered_bytes(model.parameters, shape.num_parameters),
            num_gradients=shape.num_parameters - shape.num_frozen_parameters,
            micro_steps=batch.accumulation_micro_steps,
            stream=stream,
            num_summed=model.parameters.num_whole_in_groups,
            share_of_experts=model.parameters.num_stacked / max(1, shape.num_parameters),
            share_of_stage=stages.fullest_share,
        )
    )
    rates = [group_rate(setting.cluster, group) for group in groups]
    times = [group.num_bytes / rate for group, rate in zip(groups, rates, strict=True) if rate]
    return CommunicationVolume(groups=groups, seconds=sum(times) if len(times) == len(groups) else None)


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
