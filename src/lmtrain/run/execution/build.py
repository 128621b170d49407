"""From a checked config to the objects of a run, in the order of their construction."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LambdaCallback

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.budgets import NOT_BEGUN, RunSoFar
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.data.interleave import PhasesRead
from lmtrain.data.shards import Dataset
from lmtrain.errors import ConfigurationError
from lmtrain.launch.process_group import agree_on, broadcast_outcome
from lmtrain.models.attention.base import Attention
from lmtrain.models.base import LanguageModel, unchanged
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.parallel.strategy import Parallelism
from lmtrain.precision.policy import Precision
from lmtrain.run.builders.device import (
    build_precision,
    compilation_line,
    device_type,
    fit_attention,
    fit_loss,
    is_compiled,
    resolved,
    tell_of_precision,
)
from lmtrain.run.builders.model import adapting, build_strategy, planned_model
from lmtrain.run.builders.objective import attention_for, before_training, objective_of
from lmtrain.run.builders.optimization import build_optimizer, schedules_of
from lmtrain.run.builders.own_module import fitting_callbacks, own_module
from lmtrain.run.planning.choices import with_compilation
from lmtrain.run.planning.machine_limits import batch_of, recompute_here
from lmtrain.run.planning.make_plan import PlanFacts, make_plan, validated_split
from lmtrain.run.planning.measurements import measurements_of
from lmtrain.run.planning.setting import planned_setting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.identity import identity
from lmtrain.run.stored_runs.initial_weights import find_weights, teacher_of
from lmtrain.run.stored_runs.job import Job, config_hash
from lmtrain.run.stored_runs.skipped_batches import without_skipped
from lmtrain.run.validators.callbacks import callback_lines, require_watch
from lmtrain.run.validators.data import require_rows
from lmtrain.run.validators.optimizer import rate_line
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.tracking.run_log import RunLog
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.module import CausalLMModule
from lmtrain.training.peak import device_peak
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.time_profiler import TimeProfiler
from lmtrain.training.transforms import ModelTransform, ModelTransforms


@dataclass(frozen=True, kw_only=True)
class Run:
    """The arguments of `trainer.fit`, and the context shared by its callbacks."""

    config: RunConfig
    module: CausalLMModule
    datamodule: TokenDataModule
    trainer: pl.Trainer
    context: RunContext
    callbacks: dict[str, pl.Callback]
    parallelism: Parallelism


def build_run(
    job: Job,
    *,
    rank: int,
    log: RunLog | None,
    done: RunSoFar = NOT_BEGUN,
    fork_step: int | None = None,
    read: PhasesRead | None = None,
) -> Run:
    """Build the run of one rank; nothing large is allocated before the Trainer asks for it.

    `done` is the part done before this start, `read` the data's phases in it; `fork_step` is where it left another run.
    """
    config = recompute_here(job.config)
    batch = broadcast_outcome(partial(without_skipped, batch_of(config), job.folder))
    precision = build_precision(config)
    datamodule = config.data.build(batch=batch, seed=config.seed)
    tokenizer = tokenizer_of(datamodule.dataset)
    of_run = partial(plan_of_run, batch=batch, datamodule=datamodule, precision=precision, done=done)
    plan = of_run(config)
    config, line = with_compilation(config, plan, on_cpu=device_type(config.trainer.accelerator) == "cpu")
    plan = of_run(config) if line else plan
    kernel, chosen = fit_attention(config, compute_dtype=precision.compute_dtype)
    model = build_model(config.model, tokenizer=tokenizer, batch=batch, attention=attention_for(config, kernel))
    context = build_context(
        job, config, plan, datamodule=datamodule, tokenizer=tokenizer, log=log, rank=rank, done=done
    )
    place_phases(datamodule, context.plan.horizon.steps, read=read)
    line = line or compilation_line(config, model)
    attention = f"attention={chosen}" if chosen else None
    print_lines(datamodule, context.plan, config, line, model.start_line, attention, rank=rank)
    facts = {"context": context, "num_ranks": config.num_ranks, "compute_dtype": precision.compute_dtype}
    parallelism = build_strategy(config, facts=facts)
    context.resolved.update(
        resolved(config, model, attention=chosen, precision=precision, strategy=parallelism.name),
        **{MICRO_BATCH: f"{batch.sequences_per_micro_step}"},
    )
    tell_of_precision(precision, model, context, strategy_casts=parallelism.casts_parameters)
    start = find_weights(config.init_from, model)
    own = own_module(config, model, batch, start_from=start)
    callbacks = fitting_callbacks(build_callbacks(config, facts), own)
    acting = [agreeing(config, datamodule), *callbacks.values(), config.profiler.build(facts=facts)]
    parts: dict[str, Any] = {"model": model, "datamodule": datamodule, "context": context, "parallelism": parallelism}
    parts |= {"precision": precision, "start_from": start, "fork_step": fork_step}
    return Run(
        config=config,
        module=cast(CausalLMModule, own) or build_module(config, **parts),  # callbacks know which by isinstance
        datamodule=datamodule,
        trainer=build_trainer(config, precision, parallelism, [each for each in acting if each], context),
        context=context,
        callbacks=callbacks,
        parallelism=parallelism,
    )


def build_context(
    job: Job,
    config: RunConfig,
    plan: Plan,
    *,
    datamodule: TokenDataModule,
    tokenizer: Tokenizer,
    log: RunLog | None,
    rank: int,
    done: RunSoFar,
) -> RunContext:
    """Return the context that a run's callbacks share, and mark the attempt in its log of events."""
    events = EventLog(job.folder, rank, began=job.began)
    events.mark_attempt(job.attempt, num_devices=config.num_ranks, compiles_first=bool(plan.is_compiled))
    return RunContext(
        folder=job.folder,
        plan=plan,
        dataset=datamodule.dataset,
        tokenizer=tokenizer,
        identity={**identity(config, datamodule.dataset.manifest), **datamodule.identity},
        events=events,
        log=log,
        rank=rank,
        attempt=job.attempt,
        earlier_seconds=done.seconds,
        earlier_device_seconds=done.device_seconds * config.num_ranks,
    )


def place_phases(datamodule: TokenDataModule, num_steps: int, *, read: PhasesRead | None) -> None:
    """Place a mixture's phases in the run's steps, after those that were read."""
    datamodule.total_steps = num_steps
    if read:
        datamodule.go_on(read.phases, step=read.step)


def agreeing(config: RunConfig, datamodule: TokenDataModule) -> pl.Callback:
    """Let all ranks compare config and data before they train."""
    agreement = config_hash({"config": config.values, "data": datamodule.identity})
    return LambdaCallback(setup=lambda trainer, module, stage: agree_on(agreement))


def tokenizer_of(dataset: Dataset) -> Tokenizer:
    """Load a data set's tokenizer, which must be the one that encoded the data."""
    tokenizer = load_tokenizer(dataset.tokenizer_folder)
    dataset.require_tokenizer(tokenizer.fingerprint)
    return tokenizer


def build_callbacks(config: RunConfig, facts: dict[str, Any]) -> dict[str, pl.Callback]:
    """Build the callbacks switched on, in the config's order."""
    built = {name: node.build(facts=facts) for name, node in config.callbacks.items()}
    require_watch(config)
    return built


def print_lines(datamodule: TokenDataModule, plan: Plan, config: RunConfig, *of_model: str | None, rank: int) -> None:
    """Find or build the packing's index on every rank; print once the decisions on data, schedule and model."""
    lines = [*datamodule.data_lines(), rate_line(config), *datamodule.packing_lines(), *datamodule.loss_lines()]
    lines += [datamodule.sources_line(datamodule.total_steps or 0)]
    lines += [*callback_lines(config), plan.scaling.line() if plan.scaling else None, *of_model]
    for line in lines if rank == 0 else []:
        if line:
            print(line, flush=True)


def build_model(
    node: Node, *, tokenizer: Tokenizer, batch: BatchPlan, attention: Attention | None = None
) -> LanguageModel:
    """Build the model on the meta device, where it costs nothing; `attention` replaces the config's.

    Raises:
        ConfigurationError: Its vocabulary is smaller than the tokenizer's, or its context shorter than the batch's.
    """
    with torch.device("meta"):
        model: LanguageModel = (
            node.build() if attention is None else node.without("attention").build(attention=attention)
        )
    require_rows(model.vocab_size, num_entries=tokenizer.vocab_size)
    if batch.context_tokens > model.max_context_tokens:
        raise ConfigurationError(
            f"batch.context_tokens: must be at most model.max_context_tokens={model.max_context_tokens}, got "
            f"{batch.context_tokens}."
        )
    return model


def build_module(
    config: RunConfig,
    *,
    model: LanguageModel,
    datamodule: TokenDataModule,
    context: RunContext,
    parallelism: Parallelism,
    precision: Precision,
    start_from: ModelTransform,
    fork_step: int | None = None,
) -> CausalLMModule:
    """Join model, loss, optimizer, schedules and transforms."""
    plan, objective = context.plan, objective_of(config, context)
    return CausalLMModule(
        model,
        loss=fit_loss(config, model),
        optimizer=build_optimizer(config, rank=context.rank, stochastic_rounding=precision.stochastic_rounding),
        **schedules_of(config, horizon=plan.horizon, tokens_per_step=plan.batch.tokens_per_step, fork_step=fork_step),
        spikes=config.spikes.build(),
        weight_average=config.weight_average.build(),
        outer=parallelism.outer,
        objective=objective,
        before_training=before_training(
            config,
            objective,
            datamodule=datamodule,
            context=context,
            teacher=teacher_of(config, context.tokenizer, plan.batch),
        ),
        batch=context.plan.batch,
        total_steps=context.plan.horizon.steps,
        seed=config.seed,
        gradient_clip_norm=config.gradient_clip_norm,
        scales_loss=precision.scales_loss,
        transforms=ModelTransforms(
            start_from=start_from,
            adapt=adapting(config),
            precision=partial(precision.prepare, strategy_casts=parallelism.casts_parameters),
            recompute=config.recompute.build(),
            compile=config.compile.build().apply if config.compilation.compiles else unchanged,
            parallelize=parallelism.parallelize,
        ),
    )


def build_trainer(
    config: RunConfig,
    precision: Precision,
    parallelism: Parallelism,
    callbacks: list[pl.Callback],
    context: RunContext,
) -> pl.Trainer:
    """Build the Lightning Trainer."""
    return config.make_trainer.build(
        strategy=parallelism.strategy,
        precision=PrecisionPlugin(
            precision,
            device_type=device_type(config.trainer.accelerator),
            strategy_casts=parallelism.casts_parameters,
        ),
        accumulation_micro_steps=context.plan.batch.accumulation_micro_steps,
        folder=context.folder,
        callbacks=callbacks,
        profiler=TimeProfiler(context.events.stopwatch),
    )


def plan_of_run(
    config: RunConfig, *, batch: BatchPlan, datamodule: TokenDataModule, precision: Precision, done: RunSoFar
) -> Plan:
    """Compute the plan of the whole run, on its devices and its data; the time already done leaves its budget."""
    model = planned_model(config)
    cluster, trainer, shape = config.cluster, config.trainer, model.shape()
    peak = device_peak(
        cluster,
        matmul=precision.facts.bytes_of.matmul,
        accelerator=trainer.accelerator,
        measured=measurements_of(config),
        cpu_threads=trainer.cpu_threads,
    )
    facts = PlanFacts(
        setting=planned_setting(config),
        shape=shape,
        batch=batch,
        parameters=trained_parameters(model),
        bytes_of=precision.facts.bytes_of,
        train_tokens=datamodule.train_tokens,
        epoch_tokens=datamodule.epoch_tokens,
        held_out=datamodule.held_out_tokens(validated_split(config)),
        folder=datamodule.dataset.folder,
        peak=peak,
        peak_source="unknown device: set cluster.peak_flops",
        is_compiled=is_compiled(config),
        trusts_assumed_speed=False,  # before the first step
        done=done,
    )
    return replace(make_plan(config, facts), done=NOT_BEGUN)
