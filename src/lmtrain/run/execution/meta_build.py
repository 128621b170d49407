"""The parts of a run, built on the meta device: what needs torch is refused here, before data is prepared."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch

from lmtrain.accounting.budgets import STEPS_BEFORE_SPEED_IS_KNOWN, Horizon, horizon
from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.models.base import LanguageModel
from lmtrain.optim.parameter_groups import trained_parameters
from lmtrain.run.builders.device import build_precision, device_type, fit_attention, fit_loss
from lmtrain.run.builders.model import adapting, planned_model, require_strategy
from lmtrain.run.builders.optimization import rehearsed_optimizer, schedules_of
from lmtrain.run.planning.machine_limits import require_disk, require_memory
from lmtrain.run.planning.prepared_tokens import masked_documents, prepared_epoch_tokens, require_split
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import setting_names
from lmtrain.run.stored_runs.initial_weights import find_weights
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.resume import WAYS_TO_GO_ON
from lmtrain.run.validators.optimizer import require_offload
from lmtrain.run.validators.parallelism import require_parts
from lmtrain.run.validators.task import (
    objective_facts,
    require_examples,
)
from lmtrain.tracking.fork import read_fork
from lmtrain.training.checkpointing.checkpoints import read_facts
from lmtrain.training.hyperparameters import Hyperparameters
from lmtrain.training.intervals import LastStep

CONTEXT = "context"  # a constructor's parameter for the run's context


def build_on_meta(job: Job, *, is_alone: bool) -> Job:
    """Check every node against its code, build the parts of the run, discard them, and return the job checked.

    `is_alone`: this process will train; a GPU in training by other processes is left untouched here.
    """
    config = job.config.checked()
    require_split(config)
    touches_device = is_alone or device_type(config.trainer.accelerator) == "cpu"
    precision = build_precision(config) if touches_device else None
    with torch.device("meta"):
        model: LanguageModel = config.model.build()
    if precision is not None:
        precision.explain(model)  # refuses a precision unfit for the model
        fit_attention(config, compute_dtype=precision.compute_dtype)
        fit_loss(config, model)
    require_parts(config)  # of the strategy that was chosen
    require_offload(config, on_cpu=device_type(config.trainer.accelerator) == "cpu")
    adapting(config)
    require_strategy(config, model)
    find_weights(config.init_from, model)  # refuses those of another model
    model = planned_model(config)
    optimizer = rehearsed_optimizer(config, model)
    config.spikes.build()
    config.weight_average.build()
    divided = config.divided()
    tokens_per_step = divided.tokens_per_step
    if (facts := objective_facts(config)) is not None:
        config.objective.build().require(model)
        require_examples(divided, facts)
    if touches_device and not config.batch.is_auto:  # found on the device
        require_memory(config, divided, num_parameters=model.shape().num_parameters)
    end = expected_end(config, model, tokens_per_step=tokens_per_step)
    require_disk(config, trained_parameters(model), folder=Path(job.folder), num_steps=end.steps)
    schedules = schedules_of(config, horizon=end, tokens_per_step=tokens_per_step, fork_step=expected_fork(job))
    names = {"schedule": "lr", "momentum_schedule": "momentum", "weight_decay_schedule": "weight_decay"}
    scheduled = Hyperparameters(optimizer, **{names[name]: schedule for name, schedule in schedules.items()})
    scheduled.set_for(0, end.steps)
    for node in config.callbacks.values():
        if CONTEXT in setting_names(node.target):  # ours look at their settings
            node.build(facts={CONTEXT: None, "num_ranks": config.num_ranks})
    last_step = LastStep(end.steps, seconds=end.seconds, most_steps=end.most_steps)
    context = SimpleNamespace(rank=0, last_step=last_step)  # the whole of it that a profiler's settings are checked by
    config.profiler.build(facts={CONTEXT: context, "num_ranks": config.num_ranks})
    return replace(job, config=config)


def expected_end(config: RunConfig, model: LanguageModel, *, tokens_per_step: int) -> Horizon:
    """Return where the budget ends the run, as far as it is known before its data is."""
    shape = model.shape()
    documents = masked_documents(config) if config.budget.flops else None
    flops = flops_per_token(shape, config.batch.context_tokens, documents=documents)
    return horizon(
        config.budget,
        tokens_per_step=tokens_per_step,
        num_active_parameters=shape.num_active_parameters,
        flops_per_token=flops.palm,
        # Where the data is not prepared yet, an epoch is taken to be long, as a run of hours is.
        epoch_tokens=prepared_epoch_tokens(config) or tokens_per_step * STEPS_BEFORE_SPEED_IS_KNOWN,
        usd_per_hour=config.cluster.usd_per_hour(config.num_ranks),
    )


def expected_fork(job: Job) -> int | None:
    """Return the step of the run's fork from another one, past or coming; the checkpoint is only looked at."""
    fork = read_fork(job.folder)
    if fork or job.config.resume in WAYS_TO_GO_ON:
        return fork.step if fork else None
    facts = read_facts(Path(job.config.resume))
    return facts.step if facts else 0  # a run folder, whose newest whole checkpoint is looked for later
