"""From a checked config to the objects of a run, in the order in which they come to exist."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LambdaCallback

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import horizon
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.model.flops import flops_per_token, seen_tokens
from lmtrain.accounting.training_plan.communication import step_communication
from lmtrain.accounting.training_plan.expected_speed import rate_of
from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.composition.nodes.facts import spread_of
from lmtrain.composition.nodes.instantiate import instantiate
from lmtrain.composition.parts.cuda_graphs import graphs_of
from lmtrain.composition.parts.kernels import device_type, fit_attention, fit_loss
from lmtrain.composition.parts.optimizers import build_optimizer
from lmtrain.composition.parts.precision import build_precision, tell_of_precision
from lmtrain.composition.parts.schedules import schedules_of
from lmtrain.composition.planning.auto_batch import batch_of
from lmtrain.composition.planning.calibration import measured_flops
from lmtrain.composition.planning.evaluation import validated_split, with_evaluation
from lmtrain.composition.planning.measured_here import measurements_of
from lmtrain.composition.planning.prepared_tokens import masked_documents
from lmtrain.composition.planning.step_speed import step_speed
from lmtrain.composition.scaling import scaling_of
from lmtrain.composition.stored_runs.initial_weights import find_weights, fingerprint_of
from lmtrain.composition.stored_runs.job import Job, config_hash, flatten
from lmtrain.data.shards import Dataset
from lmtrain.errors import ConfigurationError
from lmtrain.launch.agree import agree_on
from lmtrain.models.attention.base import Attention
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.strategy import Parallelism
from lmtrain.precision.policy import Precision
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.events import EventLog
from lmtrain.tracking.run_log import RunLog
from lmtrain.training.context import RunContext
from lmtrain.training.datamodule import TokenDataModule
from lmtrain.training.loop.precision_plugin import PrecisionPlugin
from lmtrain.training.measuring.peak import device_peak, device_watts
from lmtrain.training.measuring.time_profiler import TimeProfiler
from lmtrain.training.module import CausalLMModule
from lmtrain.training.transforms import ModelTransforms

KEPT_BESIDE_WEIGHTS = ("spikes", "weight_average")  # which a checkpoint holds only where the run had them


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that `trainer.fit` needs, and the context its callbacks share."""

    module: CausalLMModule
    datamodule: TokenDataModule
    trainer: pl.Trainer
    context: RunContext
    callbacks: dict[str, pl.Callback]


def build_run(
    job: Job, *, rank: int, log: RunLog | None, earlier_seconds: float = 0.0, fork_step: int | None = None
) -> Run:
    """Build the run of one rank; nothing large is allocated before the Trainer asks for it.

    `earlier_seconds` is how long earlier attempts of the run took; `fork_step` where it left another run.
    """
    config = job.config
    num_ranks = config["trainer"]["devices"] * config["trainer"]["num_nodes"]
    batch = batch_of(config, num_ranks=num_ranks, num_local_ranks=config["trainer"]["devices"])
    precision = build_precision(config)
    datamodule = instantiate(config["data"], key="data", batch=batch, seed=config["seed"])
    tokenizer = load_tokenizer(datamodule.dataset.tokenizer_folder)
    datamodule.dataset.require_tokenizer(tokenizer.fingerprint)
    attention = fit_attention(config, compute_dtype=precision.compute_dtype)
    model = build_model(config, tokenizer=tokenizer, batch=batch, attention=attention.kernel)
    events = EventLog(job.folder, rank, started_at=job.started_at)
    events.mark("attempt", attempt=job.attempt, started_at=job.started_at)
    context = RunContext(
        folder=job.folder,
        plan=make_plan(config, model=model, batch=batch, datamodule=datamodule, precision=precision),
        dataset=datamodule.dataset,
        tokenizer=tokenizer,
        identity={**identity(config, datamodule.dataset), **datamodule.identity},
        events=events,
        log=log,
        rank=rank,
        earlier_seconds=earlier_seconds,
    )
    datamodule.total_steps = context.plan.horizon.steps
    print_data_lines(datamodule, context.plan, rank=rank)
    attention.tell(events, rank=rank)
    facts = {"context": context, "num_ranks": num_ranks, "compute_dtype": precision.compute_dtype}
    parallelism: Parallelism = instantiate(config["strategy"], key="strategy", facts=facts)
    tell_of_precision(precision, model, context, strategy_casts=parallelism.casts_parameters)
    callbacks = build_callbacks(config, facts)
    agreement = config_hash({"config": config, "data": datamodule.identity})
    agree = LambdaCallback(setup=lambda trainer, module, stage: agree_on(agreement))
    return Run(
        module=build_module(
            config, model=model, context=context, parallelism=parallelism, precision=precision, fork_step=fork_step
        ),
        datamodule=datamodule,
        trainer=build_trainer(config, precision, parallelism, [agree, *callbacks.values()], context),
        context=context,
        callbacks=callbacks,
    )


def build_callbacks(config: dict[str, Any], facts: dict[str, Any]) -> dict[str, pl.Callback]:
    """Build the callbacks that were not switched off, in the config's order."""
    return {
        name: instantiate(node, key=f"callbacks.{name}", facts=facts)
        for name, node in config["callbacks"].items()
        if node is not None
    }


def print_data_lines(datamodule: TokenDataModule, plan: Plan, *, rank: int) -> None:
    """Find or build what the packing needs on every rank; tell once what the run reads, and how its size scaled it."""
    lines = [*datamodule.packing_lines(), datamodule.sources_line(datamodule.total_steps or 0)]
    lines += [plan.scaling.line()] if plan.scaling else []
    for line in lines if rank == 0 else []:
        if line:
            print(line, flush=True)


def build_model(
    config: dict[str, Any], *, tokenizer: Tokenizer, batch: BatchPlan, attention: Attention | None = None
) -> LanguageModel:
    """Build the model on the meta device, where it costs nothing; `attention` takes the place of the config's.

    Raises:
        ConfigurationError: It has no row for some token id, or a shorter context than the batch.
    """
    node: dict[str, Any] = config["model"]
    more: dict[str, Any] = {}
    if attention is not None:
        node, more = {name: value for name, value in node.items() if name != "attention"}, {"attention": attention}
    with torch.device("meta"):
        model: LanguageModel = instantiate(node, key="model", **more)
    if tokenizer.vocab_size > model.vocab_size:
        msg = (
            f"model.vocab_size={model.vocab_size} is below the tokenizer's {tokenizer.vocab_size} entries;"
            f" nearest valid: {tokenizer.vocab_size}."
        )
        raise ConfigurationError(msg)
    if batch.context_tokens > model.max_context_tokens:
        msg = (
            f"batch.context_tokens={batch.context_tokens} is beyond model.max_context_tokens="
            f"{model.max_context_tokens}; nearest valid: {model.max_context_tokens}."
        )
        raise ConfigurationError(msg)
    return model


def build_module(
    config: dict[str, Any],
    *,
    model: LanguageModel,
    context: RunContext,
    parallelism: Parallelism,
    precision: Precision,
    fork_step: int | None = None,
) -> CausalLMModule:
    """Join model, loss, optimizer, schedules and transforms."""
    plan = context.plan
    return CausalLMModule(
        model,
        loss=fit_loss(config, model),
        optimizer=build_optimizer(config, rank=context.rank, stochastic_rounding=precision.stochastic_rounding),
        **schedules_of(config, horizon=plan.horizon, tokens_per_step=plan.batch.tokens_per_step, fork_step=fork_step),
        spikes=instantiate(config["spikes"], key="spikes"),
        weight_average=instantiate(config["weight_average"], key="weight_average"),
        batch=context.plan.batch,
        total_steps=context.plan.horizon.steps,
        seed=config["seed"],
        gradient_clip_norm=config["gradient_clip_norm"],
        scales_loss=precision.scales_loss,
        make_graph=graphs_of(config),
        transforms=ModelTransforms(
            start_from=find_weights(config["init_from"], model, node=config["model"]),
            precision=partial(precision.prepare, strategy_casts=parallelism.casts_parameters),
            recompute=instantiate(config["recompute"], key="recompute"),
            compile=instantiate(config["compile"], key="compile").apply,
            parallelize=parallelism.parallelize,
        ),
    )


def build_trainer(
    config: dict[str, Any],
    precision: Precision,
    parallelism: Parallelism,
    callbacks: list[pl.Callback],
    context: RunContext,
) -> pl.Trainer:
    """Build the Lightning Trainer."""
    return instantiate(
        config["trainer"],
        key="trainer",
        strategy=parallelism.strategy,
        precision=PrecisionPlugin(
            precision,
            device_type=device_type(config["trainer"]["accelerator"]),
            strategy_casts=parallelism.casts_parameters,
        ),
        accumulation_micro_steps=context.plan.batch.accumulation_micro_steps,
        folder=context.folder,
        callbacks=callbacks,
        profiler=TimeProfiler(context.events.stopwatch),
    )


def make_plan(
    config: dict[str, Any], *, model: LanguageModel, batch: BatchPlan, datamodule: TokenDataModule, precision: Precision
) -> Plan:
    """Compute what the run will be from the model's shape, the batch and the budget."""
    shape = model.shape()
    documents = masked_documents(config, datamodule.dataset.folder)
    flops = flops_per_token(shape, batch.context_tokens, documents=documents)
    cluster: Cluster = instantiate(config["cluster"], key="cluster")
    peak = _peak(config, cluster, precision)
    sent = step_communication(
        cluster,
        batch,
        spread=spread_of(config["strategy"], allowed=[config["strategy"]["_target_"]]),
        num_parameters=shape.num_parameters,
        gathered_value_bytes=precision.bytes_of.activations,
    )
    speed_of = partial(step_speed, config, shape, batch=batch, cluster=cluster, peak=peak, sent=sent)
    speed = speed_of(num_block_parameters=model.num_block_matrix(), documents=documents)
    plan = Plan(
        shape=shape,
        batch=batch,
        horizon=horizon(
            instantiate(config["budget"], key="budget"),
            tokens_per_step=batch.tokens_per_step,
            num_parameters=shape.num_parameters,
            flops_per_token=flops.palm,
            train_tokens=datamodule.train_tokens,
            # Before the first step a budget of time trusts a stated speed alone, never an assumed one.
            rate=rate_of(cluster, speed if cluster.mfu else None, num_ranks=batch.num_ranks),
        ),
        flops_per_token=flops,
        train_tokens=datamodule.train_tokens,
        seen_tokens=seen_tokens(batch.context_tokens, documents=documents) if documents else None,
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else "unknown device: set cluster.peak_flops",
        measured_flops=measured_flops(config, precision.matmul),
        usd_per_gpu_hour=cluster.usd_per_gpu_hour,
        usd_per_kwh=cluster.usd_per_kwh,
        device_watts=device_watts(cluster, accelerator=config["trainer"]["accelerator"]),
        speed=speed,
        communication=sent,
        scaling=scaling_of(config),
    )
    return with_evaluation(plan, config, held_out=datamodule.held_out_tokens(validated_split(config)))


def _peak(config: dict[str, Any], cluster: Cluster, precision: Precision) -> Peak | None:
    return device_peak(
        cluster,
        matmul=precision.matmul,
        accelerator=config["trainer"]["accelerator"],
        measured=measurements_of(config),
        cpu_threads=config["trainer"]["cpu_threads"],
    )


def identity(config: dict[str, Any], dataset: Dataset) -> dict[str, str | int | float | None]:
    """Name what a checkpoint must share with a run that resumes from it; everything else may change."""
    architecture = {name: value for name, value in config["model"].items() if name != "attention"}
    return {
        **flatten(architecture, "model"),
        "init_from": fingerprint_of(config["init_from"]),
        "optimizer._target_": config["optimizer"]["_target_"],
        "data.fingerprint": dataset.manifest.fingerprint,
        "batch.context_tokens": config["batch"]["context_tokens"],
        "batch.tokens_per_step": config["batch"]["tokens_per_step"],
        "seed": config["seed"],
        **{name: target for name in KEPT_BESIDE_WEIGHTS if not (target := config[name]["_target_"]).endswith(".none")},
    }
