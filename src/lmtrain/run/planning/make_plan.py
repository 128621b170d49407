"""The plan of a run: on paper, from known facts of its model; and before its first step, on its devices."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import NOT_BEGUN, Horizon, RunSoFar, horizon
from lmtrain.accounting.cluster import Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.flops import FlopsPerToken, block_forward_flops, flops_per_token, seen_tokens
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import AttentionFacts, RecomputeFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.training_plan.communication import CommunicationVolume, step_communication
from lmtrain.accounting.training_plan.expected_speed import StepWork, expected_speed, hopper_seconds, rate_of
from lmtrain.accounting.training_plan.plan import Plan, Speed
from lmtrain.accounting.training_plan.plan_parts import (
    CheckpointPlan,
    GenerationPlan,
    OffloadPlan,
    checkpoint_plan,
    evaluation_plan,
    generation_plan,
    planned_offload,
)
from lmtrain.run.planning.calibration import calibration_of, single_device_speed
from lmtrain.run.planning.prepared_tokens import held_out_padding, masked_documents
from lmtrain.run.planning.setting import PlannedSetting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of, require_facts
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.run.validators.callbacks import callback_facts, held_out_passes
from lmtrain.run.validators.task import objective_facts


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """The facts of model, data and devices next to a config.

    `bytes_of` are those of a value by its role, `epoch_tokens` those of all training rows once, `held_out` those of
    each source's validation, `folder` that of the data (None: as far as the config names it). `peak` None is not known,
    for the reason in `peak_source`.
    `trusts_assumed_speed` lets a budget of time end where an assumed speed says; else only where a stated one does.
    """

    shape: ModelShape
    batch: BatchPlan
    parameters: TrainedParameters
    bytes_of: PrecisionBytes
    train_tokens: int | None
    epoch_tokens: int | None
    held_out: Sequence[int]
    folder: Path | None = None
    peak: Peak | None
    peak_source: str
    device_watts: float | None
    measured: Peak | None = None
    is_compiled: bool
    trusts_assumed_speed: bool
    done: RunSoFar = NOT_BEGUN


def make_plan(config: RunConfig, facts: PlanFacts) -> Plan:
    """Compute the whole plan of a config.

    Raises:
        ConfigurationError: An impossible budget.
    """
    cluster, batch, shape = config.cluster, facts.batch, facts.shape
    documents = masked_documents(config, facts.folder)
    flops = flops_per_token(shape, batch.context_tokens, documents=documents)
    sent = _sent(config, facts)
    seen = seen_tokens(batch.context_tokens, documents=documents)
    offload = _offload(config, facts)
    speed = _speed(config, facts, flops=flops, seen=seen, sent=sent, offload=offload)
    trusted = speed if facts.trusts_assumed_speed or cluster.mfu else None
    generation = _generation(config, facts, flops_per_token=flops.palm)
    writing = _writing_seconds(generation, speed, batch)
    plan = Plan(
        shape=shape,
        batch=batch,
        horizon=horizon(
            config.budget,
            tokens_per_step=batch.tokens_per_step,
            num_active_parameters=shape.num_active_parameters,
            flops_per_token=flops.palm,
            epoch_tokens=_epoch_tokens(config, facts),
            rate=rate_of(cluster, trusted, num_ranks=batch.num_ranks, seconds_beside=writing),
            done=facts.done,
        ),
        flops_per_token=flops,
        train_tokens=facts.train_tokens,
        epoch_tokens=_epoch_tokens(config, facts),
        seen_tokens=seen if documents else None,
        peak_flops=facts.peak.flops if facts.peak else None,
        peak_source=facts.peak.source if facts.peak else facts.peak_source,
        peak_doubt=facts.peak.doubt if facts.peak else "",
        measured_flops=facts.measured.flops if facts.measured else None,
        measured_doubt=facts.measured.doubt if facts.measured else "",
        usd_per_gpu_hour=cluster.usd_per_gpu_hour,
        usd_per_kwh=cluster.usd_per_kwh,
        device_watts=facts.device_watts,
        speed=speed,
        communication=sent,
        generation=generation,
        done=facts.done,
    )
    return _with_more(plan, config, facts, offload=offload, is_trusted=trusted is not None)


def _with_more(
    plan: Plan, config: RunConfig, facts: PlanFacts, *, offload: OffloadPlan | None, is_trusted: bool
) -> Plan:
    """Add the parts that a plan may be without: optimizer state in host memory, scaling, evaluation."""
    plan = replace(
        plan,
        is_compiled=facts.is_compiled,
        is_from_scratch=config.init_from is None and not facts.shape.num_frozen_parameters,
        single_device_tokens_per_second=single_device_speed(config, plan.batch),
        offload=offload,
        scaling=config.scaling,
    )
    padding = held_out_padding(config, validated_split(config), facts.folder)
    return with_evaluation(plan, config, held_out=facts.held_out, padding=padding, decides_end=is_trusted)


def validated_split(config: RunConfig) -> str:
    """Return the split that validation reads."""
    passes = held_out_passes(config)
    return passes.split if passes else "validation"


def with_evaluation(
    plan: Plan, config: RunConfig, *, held_out: Sequence[int], padding: float = 1.0, decides_end: bool = True
) -> Plan:
    """Count the passes over held-out text, of these tokens per source; averaged weights read the first again.

    `padding` are the computed tokens per token of the text. A budget of time keeps the steps and passes that it is
    enough for; where the speed does not decide the end, they only size the passes.
    """
    keeps_average = not gives_nothing(config.weight_average.target)
    passes, texts = held_out_passes(config), [*held_out, *held_out[: int(keeps_average)]]

    def until(end: Horizon) -> Plan:
        found = evaluation_plan(passes, num_steps=end.steps, run_tokens=end.tokens, held_out=texts, padding=padding)
        return replace(plan, horizon=end, evaluation=found)

    def seconds_to(steps: int) -> float:
        return until(plan.horizon.ending_at(steps)).seconds or 0.0

    whole = until(plan.horizon.within_time(seconds_to, done=plan.done))
    return whole if decides_end else replace(whole, horizon=plan.horizon, expected_tokens=whole.horizon.tokens)


def planned_checkpoints(config: RunConfig, setting: PlannedSetting, parameters: TrainedParameters) -> CheckpointPlan:
    """Return the bytes of a checkpoint of the config, of all of them on disk at once, and their cadence."""
    spread, num_devices, facts = config.spread, config.num_ranks, callback_facts(config)
    return checkpoint_plan(
        parameters,
        precision=setting.bytes_of,
        optimizer=setting.state,
        num_kept=sum(each.num_kept for each in facts) or 1,
        num_devices=num_devices,
        num_parts=spread.num_savers(num_devices),
        num_workers=1 if spread.equals_one_process else num_devices,
        shared_bytes=spread.kept_bytes,
        num_nodes=config.trainer.num_nodes,
        device_hours_per_failure=config.cluster.device_hours_per_failure,
        restart_seconds=config.cluster.restart_seconds,
        set_seconds=min((each.saves_every_seconds for each in facts if each.saves_every_seconds), default=None),
    )


def _recompute(config: RunConfig) -> RecomputeFacts:
    return facts_of(config.recompute.values, RecomputeFacts, allowed=config.allowed) or RecomputeFacts()


def _has_wide_stream(config: RunConfig) -> bool:
    """Return whether the residual stream is in fp32 between products in bf16."""
    found = require_facts(config.precision.values, PrecisionFacts, allowed=config.allowed, has_bf16=True)
    return found.residual is None and not (found.casts_parameters or config.spread.casts_parameters)


def _sent(config: RunConfig, facts: PlanFacts) -> CommunicationVolume:
    heads, kv_heads = (config.model.values.get(name) for name in ("num_heads", "num_kv_heads"))
    return step_communication(
        config.cluster,
        facts.batch,
        spread=require_facts(config.strategy.values, ModelSpread, allowed=config.allowed),
        shape=facts.shape,
        gathered_value_bytes=facts.bytes_of.activations,
        share_again=_recompute(config).share,
        share_of_kv_heads=kv_heads / heads if isinstance(heads, int) and isinstance(kv_heads, int) else 1.0,
    )


def _optimizer(config: RunConfig) -> OptimizerFacts:
    return require_facts(config.optimizer.values, OptimizerFacts, allowed=config.allowed)


def _offload(config: RunConfig, facts: PlanFacts) -> OffloadPlan | None:
    """Return a device's optimizer state in host memory, None where the device keeps it."""
    if not config.optimizer_cpu_offload:
        return None
    optimizer = _optimizer(config).state
    held = state_bytes(facts.parameters, precision=facts.bytes_of, optimizer=optimizer)
    num_parts = config.spread.num_shards(facts.batch.num_ranks) * config.spread.tensor_ranks
    return planned_offload(held // num_parts, device=config.cluster.device)


def _epoch_tokens(config: RunConfig, facts: PlanFacts) -> int | None:
    """Return the tokens of an epoch, the copies of its rows included."""
    found = objective_facts(config)
    repeats = found.copies * found.num_uses if found else 1
    return None if facts.epoch_tokens is None else facts.epoch_tokens * repeats


def _generation(config: RunConfig, facts: PlanFacts, *, flops_per_token: float) -> GenerationPlan | None:
    """Return the writing of answers in a step, None where none are written."""
    found, device = objective_facts(config), config.cluster.known_device
    return found and generation_plan(
        found,
        facts.batch,
        flops_per_token=flops_per_token,
        weight_bytes=facts.shape.num_active_parameters * facts.bytes_of.activations,
        memory_bytes_per_second=device.memory_bytes_per_second if device else None,
    )


def _writing_seconds(generation: GenerationPlan | None, speed: Speed | None, batch: BatchPlan) -> float:
    if generation is None or speed is None:
        return 0.0
    return generation.seconds(step_seconds=speed.step_seconds, tokens_per_step=batch.tokens_per_step)


def _speed(
    config: RunConfig,
    facts: PlanFacts,
    *,
    flops: FlopsPerToken,
    seen: float,
    sent: CommunicationVolume,
    offload: OffloadPlan | None,
) -> Speed | None:
    """Return the time of a step, with the products recomputed in its backward pass."""
    num_block_parameters = facts.parameters.num_block_matrix(facts.shape)
    again = block_forward_flops(facts.shape, num_block_parameters=num_block_parameters, seen=seen)
    recomputed = _recompute(config).share * again
    width = facts.shape.width
    work = StepWork(
        shape=facts.shape,
        width=width,
        flops=flops,
        num_logits=(facts.shape.num_matmul_parameters - num_block_parameters) / max(1, width),
        recomputed_flops=recomputed,
        num_tokens=facts.batch.tokens_per_step,
        has_wide_stream=_has_wide_stream(config),
    )
    updates_in_one_pass = _optimizer(config).state.updates_in_one_pass  # as AdamW, with which it was measured
    place: dict[str, Any] = {"on_gpu": True, "is_compiled": facts.is_compiled}
    attention = facts_of(config.attention.values, AttentionFacts, allowed=config.allowed, **place)
    is_fused = attention is None or attention.is_fused
    is_single = facts.batch.num_ranks == 1 and facts.is_compiled and facts.bytes_of.matmul == "bf16"
    is_known = is_single and is_fused and updates_in_one_pass
    return expected_speed(
        config.cluster,
        facts.peak,
        facts.batch,
        flops_per_token=flops.palm,
        calibration=calibration_of(config, facts.batch),
        sent=sent,
        recomputed_flops=recomputed,
        by_parts=hopper_seconds(work, config.cluster.known_device, facts.peak) if is_known else None,
        offload_seconds=(offload.seconds or 0.0) if offload else 0.0,
        bubble_share=config.spread.pipeline.bubble_share(facts.batch.accumulation_micro_steps),
    )
