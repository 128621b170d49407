"""What a training config will need, take and cost, from the same config that then trains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from lmtrain.accounting.batches import Batch, BatchPlan, plan_batches
from lmtrain.accounting.budgets import Budget, horizon
from lmtrain.accounting.model.flops import flops_per_token, seen_tokens
from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.training_plan.checkpoint_plan import CheckpointPlan, checkpoint_plan
from lmtrain.accounting.training_plan.communication import (
    CommunicationVolume,
    devices_in_a_node,
    step_communication,
)
from lmtrain.accounting.training_plan.expected_speed import rate_of
from lmtrain.accounting.training_plan.fit import Setting, largest_micro_batch, memory_of
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.composition.command_line.arguments import parse_arguments
from lmtrain.composition.depth_dial import offered
from lmtrain.composition.nodes.check import check_node, check_value
from lmtrain.composition.nodes.instantiate import instantiate
from lmtrain.composition.parts.schedules import WITH_RAMPS, require_ramps_fit
from lmtrain.composition.planning.calibration import peak_here
from lmtrain.composition.planning.evaluation import validated_split, with_evaluation
from lmtrain.composition.planning.known_models import facts_known, model_facts
from lmtrain.composition.planning.prepared_tokens import (
    held_out_tokens,
    masked_documents,
    prepared_train_tokens,
    source_epochs,
)
from lmtrain.composition.planning.setting import PlannedSetting, planned_setting
from lmtrain.composition.planning.step_speed import step_speed
from lmtrain.composition.planning.tried_words import with_words, words_of_devices
from lmtrain.composition.rules.optimizer import require_settings
from lmtrain.composition.scaling import scaling_of
from lmtrain.errors import ConfigurationError
from lmtrain.report.plan_advice import EVERY_BLOCK, Advice, Changes, advice

NO_RECOMPUTE: Final = "lmtrain.parallel.activation_checkpoint.none"


@dataclass(frozen=True)
class PlannedRun:
    """A config's plan, what decides its memory, and what to say about it; `title` is the model's name."""

    title: str
    plan: Plan
    fit: Setting
    advice: Advice

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return self.plan.to_json() | {"advice": list(self.advice.lines), "ok": self.advice.is_possible}


def planned_runs(words: list[str], *, program: str) -> list[PlannedRun]:
    """Plan the config of a command line, or each of a sweep.

    Raises:
        ConfigurationError: The command line is wrong.
    """
    arguments = parse_arguments(words)
    from lmtrain.composition.command_line.compose import Choices, for_each_config

    found: list[PlannedRun] = []

    def task(config: dict[str, Any], choices: Choices) -> None:
        require_settings(config)
        setting = planned_setting(config, allowed=arguments.allowed_targets)
        facts = model_facts(config, setting, allowed=arguments.allowed_targets)
        planned = make_plan(config, setting, facts, allowed=arguments.allowed_targets)
        _require_ramps(config, planned, allowed=arguments.allowed_targets)
        planned = replace(
            planned,
            scaling=scaling_of(config) or offered(config, choices.overrides),
            source_epochs=source_epochs(config, planned.horizon.tokens),
        )
        planned = planned_evaluation(planned, config)
        fit = fit_setting(setting, facts)
        possible = changes(config, is_tight=planned.fits is False, allowed=arguments.allowed_targets)
        said = advice(planned, fit, possible, recompute=setting.recompute)
        found.append(PlannedRun(choices.options["model"], planned, fit, said))

    for_each_config(task, arguments, config_name="train", program=program)
    return found


def make_plan(config: dict[str, Any], setting: PlannedSetting, facts: ModelFacts, *, allowed: list[str]) -> Plan:
    """Compute everything that a config implies.

    Raises:
        ConfigurationError: A batch that does not divide, or a budget that cannot be.
    """
    fit = fit_setting(setting, facts)
    batch = planned_batch(config, setting, fit, allowed=allowed)
    documents = masked_documents(config)
    flops = flops_per_token(facts.shape, batch.context_tokens, documents=documents)
    peak = setting.peak() or peak_here(config, setting)
    sent = _sent(setting, facts, batch)
    speed_of = partial(step_speed, config, batch=batch, peak=peak, sent=sent, documents=documents, allowed=allowed)
    num_matrix = facts.parameters.num_block_matrix(facts.shape)
    speed = speed_of(facts.shape, cluster=setting.cluster, num_block_parameters=num_matrix)
    device = setting.cluster.known_device
    train_tokens = prepared_train_tokens(config)
    budget: Budget = instantiate(check_node(config["budget"], key="budget", allowed=allowed), key="budget")
    return Plan(
        shape=facts.shape,
        components=facts.components,
        batch=batch,
        horizon=horizon(
            budget,
            tokens_per_step=batch.tokens_per_step,
            num_parameters=facts.shape.num_parameters,
            flops_per_token=flops.palm,
            train_tokens=train_tokens,
            rate=rate_of(setting.cluster, speed, num_ranks=batch.num_ranks),
        ),
        flops_per_token=flops,
        train_tokens=train_tokens,
        seen_tokens=seen_tokens(batch.context_tokens, documents=documents) if documents else None,
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else "unknown: set cluster.device, cluster.peak_flops, or run lmtrain doctor",
        usd_per_gpu_hour=setting.cluster.usd_per_gpu_hour,
        usd_per_kwh=setting.cluster.usd_per_kwh,
        device_watts=device.power_watts if device else None,
        device_bytes=fit.device_bytes,
        memory=memory_of(fit, batch),
        speed=speed,
        communication=sent,
        checkpoints=_checkpoints(config, setting, facts),
    )


def _sent(setting: PlannedSetting, facts: ModelFacts, batch: BatchPlan) -> CommunicationVolume:
    return step_communication(
        setting.cluster,
        batch,
        spread=setting.spread,
        num_parameters=facts.parameters.num_total,
        gathered_value_bytes=setting.bytes_of.activations,
    )


def _checkpoints(config: dict[str, Any], setting: PlannedSetting, facts: ModelFacts) -> CheckpointPlan:
    kept = (config["callbacks"].get("checkpoint") or {}).get("keep_last", 1)
    return checkpoint_plan(
        facts.parameters,
        precision=setting.bytes_of,
        optimizer=setting.state,
        num_kept=check_value(kept, int, key="callbacks.checkpoint.keep_last"),
    )


def planned_evaluation(plan: Plan, config: dict[str, Any]) -> Plan:
    """Count the passes over held-out text; in a budget of time they take the place of steps."""
    held_out = held_out_tokens(config, validated_split(config))
    plan = with_evaluation(plan, config, held_out=held_out)
    if plan.horizon.limited_by in ("hours", "usd") and plan.speed is not None:
        steps = plan.horizon.steps - math.ceil(plan.evaluation_seconds / plan.speed.step_seconds)
        plan = replace(plan, horizon=plan.horizon.ending_at(max(1, steps)))
    return plan


def fit_setting(setting: PlannedSetting, facts: ModelFacts) -> Setting:
    """Return what decides the memory of a device."""
    device = setting.cluster.known_device
    return Setting(
        facts=facts,
        precision=setting.bytes_of,
        optimizer=setting.state,
        is_sharded=setting.spread.shards_over is not None and setting.num_ranks > 1,
        most_shards=(
            devices_in_a_node(setting.cluster, setting.num_ranks) if setting.spread.shards_over == "node" else None
        ),
        device_bytes=device.memory_bytes if device else None,
        host=setting.host,
    )


def changes(config: dict[str, Any], *, is_tight: bool, allowed: list[str]) -> Changes:
    """Return what may be advised of a config; of recomputation only where its memory `is_tight`."""
    return Changes(
        planned=partial(planned_with, config, allowed=allowed),
        words_of_devices=partial(words_of_devices, config),
        sharded=partial(sharded, config, allowed=allowed),
        recomputed=recomputed(config, allowed=allowed) if is_tight else None,
    )


def planned_with(config: dict[str, Any], words: Sequence[str], *, allowed: list[str]) -> Plan | None:
    """Return the plan of a config with some words typed beside, None where they are refused."""
    changed = with_words(config, words)
    try:
        setting = planned_setting(changed, allowed=allowed)
        plan = make_plan(changed, setting, model_facts(changed, setting, allowed=allowed), allowed=allowed)
        _require_ramps(changed, plan, allowed=allowed)
    except ConfigurationError:
        return None
    return planned_evaluation(plan, changed)


def _require_ramps(config: dict[str, Any], plan: Plan, *, allowed: list[str]) -> None:
    schedules = {name: check_node(config[name], key=name, allowed=allowed) for name in WITH_RAMPS}
    require_ramps_fit(schedules, horizon=plan.horizon, tokens_per_step=plan.batch.tokens_per_step)


def recomputed(config: dict[str, Any], *, allowed: list[str]) -> Setting | None:
    """Return what decides the memory under recompute=every_block, None where it is so already or would be measured."""
    if config["recompute"]["_target_"] != NO_RECOMPUTE:
        return None
    changed = with_words(config, [EVERY_BLOCK])
    setting = planned_setting(changed, allowed=allowed)
    facts = facts_known(changed, setting)
    return fit_setting(setting, facts) if facts else None


def sharded(config: dict[str, Any], *, allowed: list[str]) -> list[tuple[Sequence[str], Setting]]:
    """Return what decides the memory under strategy=fsdp, as it is and with recompute=every_block, each with its words.

    A model that computes with gathered weights keeps other activations and another workspace than one of whole weights;
    where its facts are not known yet, they are measured.
    """
    found: list[tuple[Sequence[str], Setting]] = []
    for words in ((), (EVERY_BLOCK,)) if config["recompute"]["_target_"] == NO_RECOMPUTE else ((),):
        changed = with_words(config, ["strategy=fsdp", *words])
        setting = planned_setting(changed, allowed=allowed)
        found.append((words, fit_setting(setting, model_facts(changed, setting, allowed=allowed))))
    return found


def planned_batch(config: dict[str, Any], setting: PlannedSetting, fit: Setting, *, allowed: list[str]) -> BatchPlan:
    """Divide a step over the devices; a micro batch called `auto` becomes the largest that fits."""
    batch: Batch = instantiate(check_node(config["batch"], key="batch", allowed=allowed), key="batch")
    if batch.micro_batch_sequences == "auto":
        return fitted_batch(batch, fit, num_ranks=setting.num_ranks)
    return plan_batches(batch, num_ranks=setting.num_ranks)


def fitted_batch(batch: Batch, fit: Setting, *, num_ranks: int) -> BatchPlan:
    """Return the batch with the largest micro batch that fits a device.

    Raises:
        ConfigurationError: Not even one sequence does.
    """
    whole = plan_batches(replace(batch, micro_batch_sequences=None), num_ranks=num_ranks)
    found = largest_micro_batch(fit, whole)
    if found is None:
        single = replace(whole, micro_batch_sequences=1, accumulation_micro_steps=whole.sequences_per_rank)
        needed = memory_of(fit, single).total
        raise ConfigurationError(
            f"batch.micro_batch_sequences=auto: not even one sequence fits, it needs {needed / 1e9:.1f} GB of "
            f"{(fit.device_bytes or 0) / 1e9:.1f} GB; with "
            "batch.micro_batch_sequences=1 `lmtrain plan` tells what would."
        )
    return found
