"""The plan of a run: on paper, from known facts of its model; and before its first step, on its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import NOT_BEGUN, Horizon, RunSoFar, horizon
from lmtrain.accounting.cluster import Peak
from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.model.flops import flops_per_token, seen_tokens
from lmtrain.accounting.model.memory import TrainedParameters, state_bytes
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.accounting.training_plan.plan_parts import (
    FORWARD_SHARE,
    CheckpointPlan,
    GenerationPlan,
    OffloadPlan,
    TeacherPlan,
    checkpoint_plan,
    evaluation_plan,
    generation_plan,
)
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.accounting.training_plan.speed import Speed, expected_speed, sent_in_step
from lmtrain.accounting.training_plan.step_time import PlannedModel, modelled_step
from lmtrain.run.planning.prepared_tokens import masked_documents
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.run.validators.callbacks import held_out_passes
from lmtrain.run.validators.task import objective_facts


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """The facts of model, data and devices next to a config.

    `bytes_of` are those of a value by its role, `epoch_tokens` those of all training rows once, `held_out` those of
    each source's validation, `folder` that of the data (None: as far as the config names it). `peak` None is not known,
    for the reason in `peak_source`.
    `trusts_assumed_speed` lets a budget of time end where an assumed speed says; else only where a stated one does.
    """

    setting: Setting
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
    is_compiled: bool
    trusts_assumed_speed: bool
    done: RunSoFar = NOT_BEGUN


def make_plan(config: RunConfig, facts: PlanFacts) -> Plan:
    """Compute the whole plan of a config."""
    cluster, batch, shape, setting = config.cluster, facts.batch, facts.shape, facts.setting
    peak, epoch_tokens, context = facts.peak, _epoch_tokens(config, facts), batch.context_tokens
    documents = masked_documents(config, facts.folder)
    flops, seen = flops_per_token(shape, context, documents=documents), seen_tokens(context, documents=documents)
    model = PlannedModel(shape=shape, parameters=facts.parameters, flops=flops)
    sent = sent_in_step(setting, batch, model)
    step = modelled_step(setting, batch, model, sent.groups)
    offload = _offload(config, facts)
    again, wait = model.recomputed_flops(setting, seen=seen), (offload.seconds or 0.0) if offload else 0.0
    speed = expected_speed(
        cluster, peak, batch, flops_per_token=flops.palm, modelled=step, recomputed_flops=again, offload_seconds=wait
    )
    teacher, objective = _teacher(setting, batch, documents), objective_facts(config)
    speed = _next_to(teacher, speed, step_flops=flops.palm * batch.tokens_per_step)
    trusted = speed if facts.trusts_assumed_speed or cluster.mfu else None
    generation = _generation(config, facts, flops_per_token=flops.palm)
    plan = Plan(
        shape=shape,
        batch=batch,
        horizon=_horizon(config, facts, flops.palm, epoch_tokens, trusted, generation),
        flops_per_token=flops,
        train_tokens=facts.train_tokens,
        epoch_tokens=epoch_tokens,
        seen_tokens=seen if documents else None,
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else facts.peak_source,
        speed=speed,
        step=step,
        communication=sent,
        generation=generation,
        teacher=teacher,
        scores_ahead=bool(objective and objective.scores_ahead),
        done=facts.done,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour,
        is_compiled=facts.is_compiled,
        is_from_scratch=config.init_from is None and not shape.num_frozen_parameters,
        offload=offload,
        scaling=config.scaling,
    )
    return with_evaluation(plan, config, held_out=facts.held_out, decides_end=trusted is not None)


def validated_split(config: RunConfig) -> str:
    """Return the split that validation reads."""
    passes = held_out_passes(config)
    return passes.split if passes else "validation"


def with_evaluation(plan: Plan, config: RunConfig, *, held_out: Sequence[int], decides_end: bool = True) -> Plan:
    """Count the passes over held-out text, of these tokens per source; averaged weights read the first again.

    A budget of time keeps the steps and passes that it is
    enough for; where the speed does not decide the end, they only size the passes.
    """
    keeps_average = not gives_nothing(config.weight_average.target)
    passes, texts = held_out_passes(config), [*held_out, *held_out[: int(keeps_average)]]

    def until(end: Horizon) -> Plan:
        found = evaluation_plan(passes, num_steps=end.steps, run_tokens=end.tokens, held_out=texts)
        return replace(plan, horizon=end, evaluation=found)

    def seconds_to(steps: int) -> float:
        return until(plan.horizon.ending_at(steps)).seconds or 0.0

    whole = until(plan.horizon.within_time(seconds_to, done=plan.done))
    return whole if decides_end else replace(whole, horizon=plan.horizon, expected_tokens=whole.horizon.tokens)


def planned_checkpoints(config: RunConfig, setting: Setting, parameters: TrainedParameters) -> CheckpointPlan:
    """Return the bytes of a checkpoint of the config, of all of them on disk at once, and their cadence."""
    spread, num_devices, facts = config.spread, config.num_ranks, config.callback_facts.values()
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
    )


def _horizon(
    config: RunConfig,
    facts: PlanFacts,
    flops_per_token: int,
    epoch_tokens: int | None,
    speed: Speed | None,
    generation: GenerationPlan | None,
) -> Horizon:
    """Return where the budget ends the run; a `speed` that is trusted ends a budget of time."""
    batch, writing = facts.batch, 0.0
    if generation and speed:
        writing = generation.seconds(step_seconds=speed.step_seconds, tokens_per_step=batch.tokens_per_step)
    return horizon(
        config.budget,
        tokens_per_step=batch.tokens_per_step,
        num_active_parameters=facts.shape.num_active_parameters,
        flops_per_token=flops_per_token,
        epoch_tokens=epoch_tokens,
        seconds_per_step=speed and speed.step_seconds + writing,
        usd_per_hour=config.cluster.usd_per_hour(batch.num_ranks),
        done=facts.done,
    )


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


def _teacher(setting: Setting, batch: BatchPlan, documents: Mapping[int, float] | None) -> TeacherPlan | None:
    """Return the forward passes of a teacher, None without one."""
    if setting.teacher is None:
        return None
    per_token = flops_per_token(setting.teacher, batch.context_tokens, documents=documents).palm * FORWARD_SHARE
    return TeacherPlan(flops_per_step=per_token * batch.tokens_per_step, weight_bytes=setting.teacher_bytes)


def _next_to(teacher: TeacherPlan | None, speed: Speed | None, *, step_flops: float) -> Speed | None:
    """Return the speed of steps in which a teacher reads too, at the pace of training."""
    if teacher is None or speed is None:
        return speed
    slower = 1 + teacher.flops_per_step / step_flops
    return replace(speed, step_seconds=speed.step_seconds * slower, mfu_palm=speed.mfu_palm / slower)


def _offload(config: RunConfig, facts: PlanFacts) -> OffloadPlan | None:
    """Return a device's optimizer state in host memory, None where the device keeps it."""
    if not config.optimizer_cpu_offload:
        return None
    held = state_bytes(facts.parameters, precision=facts.bytes_of, optimizer=facts.setting.state)
    num_parts = config.spread.num_shards(facts.batch.num_ranks) * config.spread.tensor_ranks
    known = config.cluster.known_device
    link = known.host_bytes_per_second if known else None
    return OffloadPlan(host_bytes=held // num_parts, link_bytes_per_second=link)
