"""The schedules of a run, from its config: checked against its budget before anything is allocated."""

import math
from typing import Any

from lmtrain.accounting.budgets import Horizon, horizon, limits_of
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError
from lmtrain.optim.schedules import ramp_steps
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node

RAMPS = ("warmup", "warmdown")
UNITS = ("steps", "tokens", "fraction")
COUNTED = frozenset({"steps", "tokens"})  # budgets with an end known without model, data and devices


def schedules_of(config: RunConfig, *, horizon: Horizon, tokens_per_step: int, fork_step: int | None) -> dict[str, Any]:
    """Return the schedules under the training module's names.

    `fork_step` is the default first step of a cool-down.

    Raises:
        ConfigurationError: A schedule beyond its budget, or an impossible one.
    """
    require_ramps_fit(config, horizon=horizon, tokens_per_step=tokens_per_step)
    node = config.schedule
    if node.get("start_step", 0) is None:
        node = node.changed(start_step=fork_step)
    schedule = node.build(facts={"tokens_per_step": tokens_per_step})
    schedule(0, horizon.steps)  # refuses impossible settings
    others = (config.momentum_schedule, config.weight_decay_schedule)
    return {"schedule": schedule, **{node.key: node.build() for node in others}}


def require_ramps_of_budget(config: RunConfig) -> None:
    """Refuse such ramps before anything but the config is known, where that tells the run's end.

    Raises:
        ConfigurationError: They are too long.
    """
    if limits_of(config.budget).keys() <= COUNTED:
        tokens = config.batch.tokens_per_step
        end = horizon(config.budget, tokens_per_step=tokens, num_active_parameters=1, flops_per_token=1)
        checked = config.with_checked("schedule", "momentum_schedule")
        require_ramps_fit(checked, horizon=end, tokens_per_step=tokens)


def require_ramps_fit(config: RunConfig, *, horizon: Horizon, tokens_per_step: int) -> None:
    """Refuse ramps of the learning rate or the momentum longer together than the run.

    A budget of time, whose end moves, has no such rule.

    Raises:
        ConfigurationError: They are; the message has the longest possible.
    """
    if horizon.seconds is not None:
        return
    for node in (config.schedule, config.momentum_schedule):
        _require_fit(node, horizon.steps, tokens_per_step)


def _require_fit(node: Node, num_steps: int, tokens_per_step: int) -> None:
    lengths: dict[str, float] = {}
    share = 0.0  # of any run's steps
    for ramp in RAMPS:
        steps, tokens, fraction = (node.get(f"{ramp}_{unit}") for unit in UNITS)
        lengths[ramp] = ramp_steps(ramp, steps, tokens, fraction, tokens_per_step, num_steps, key=node.key)
        share += fraction or 0.0
    if sum(lengths.values()) <= num_steps * (1 + 1e-9):
        return
    told = " and ".join(
        f"{node.key}.{ramp}_{unit}={node.get(f'{ramp}_{unit}')}"
        for ramp in RAMPS
        for unit in UNITS
        if node.get(f"{ramp}_{unit}")
    )
    fixed = sum(lengths.values()) - share * num_steps
    longer = f", or budget.steps={math.ceil(fixed / (1 - share))}" if fixed and share < 1 else ""
    left = max(0, math.floor(num_steps - lengths["warmdown"]))
    raise ConfigurationError(
        f"{told} take {format_count(math.ceil(sum(lengths.values())), 'step')}, longer than the run of "
        f"{format_count(num_steps, 'step')}; "
        + (f"nearest valid: {node.key}.warmup_steps={left}{longer}." if left else "shorten them, or raise the budget.")
    )
