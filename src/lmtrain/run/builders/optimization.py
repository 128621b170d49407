"""A run's optimizer, tried on its model before any preparation, and its schedules, checked against its budget."""

import inspect
from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer

from lmtrain.accounting.budgets import Horizon
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.optim.offloaded_state import keep_state_on_host
from lmtrain.optim.parameter_groups import group_lines, require_each_once
from lmtrain.run.run_config import RunConfig
from lmtrain.run.validators.optimizer import require_ramps_fit, require_settings

SHARES_WORK: Final = "share_work"  # a setting of optimizers whose ranks hold the same weights


def rehearsed_optimizer(config: RunConfig, model: LanguageModel) -> Optimizer:
    """Build the optimizer of a run on a model without memory: a refusal comes before data is prepared."""
    require_settings(config)
    make = config.optimizer.build(facts={"stochastic_rounding": False})
    optimizer = _build(make, model, option=config.optimizer.word)
    require_each_once(model, optimizer)
    return optimizer


def build_optimizer(
    config: RunConfig, *, rank: int, stochastic_rounding: bool = False
) -> Callable[[LanguageModel], Optimizer]:
    """Return a builder of the run's optimizer; it logs the groups once."""
    node, option = config.optimizer, config.optimizer.word
    if config.spread.meets_every_steps is not None and SHARES_WORK in node:  # workers' weights differ
        node = node.changed(**{SHARES_WORK: False})
    make = node.build(facts={"stochastic_rounding": stochastic_rounding})

    def build(model: LanguageModel) -> Optimizer:
        optimizer = _build(make, model, option=option)
        if config.optimizer_cpu_offload:
            optimizer = keep_state_on_host(optimizer)
        if rank == 0 and model.whole_step is None:  # a stage has but a part of each group
            print("\n  ".join([f"optimizer={option}", *group_lines(optimizer)]), flush=True)
        return optimizer

    return build


def _build(make: Callable[[LanguageModel], Optimizer], model: LanguageModel, *, option: str) -> Optimizer:
    """Build an optimizer, and word a library's refusal of its settings as ours."""
    try:
        inspect.signature(make).bind(model)
    except TypeError as missing:
        raise ConfigurationError(f"optimizer={option}: {missing}; give it as optimizer.NAME=VALUE.") from missing
    try:
        return make(model)
    except LMTRAIN_ERRORS:
        raise
    except (ValueError, AssertionError) as refusal:
        reason = str(refusal) or "its library refuses a setting without a word; lr must be above 0, betas within 0 to 1"
        raise ConfigurationError(f"optimizer={option}: {reason}.") from refusal


def schedules_of(config: RunConfig, *, horizon: Horizon, tokens_per_step: int, fork_step: int | None) -> dict[str, Any]:
    """Return the schedules under the training module's names.

    `fork_step` is the default first step of a cool-down.
    """
    require_ramps_fit(config, horizon=horizon, tokens_per_step=tokens_per_step)
    node = config.schedule
    if node.get("start_step", 0) is None:
        node = node.changed(start_step=fork_step)
    schedule = node.build(facts={"tokens_per_step": tokens_per_step})
    schedule(0, horizon.steps)  # refuses impossible settings
    others = (config.momentum_schedule, config.weight_decay_schedule)
    return {"schedule": schedule, **{node.key: node.build() for node in others}}
