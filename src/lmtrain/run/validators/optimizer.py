"""Refusals of a run's optimizer and its schedules from the config alone: for plans too, without torch."""

import math
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from lmtrain.accounting.budgets import Horizon, horizon, limits_of
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import LossFacts, ScheduleFacts
from lmtrain.accounting.options.ranges import COMMON, RATE, Bounds, require_number
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError, wrong
from lmtrain.optim.schedules import ramp_steps
from lmtrain.run.compose.group_options import file_values, one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import gives_nothing, setting_names

CPU_OFFLOAD: Final = "optimizer_cpu_offload"
ROUNDING: Final = "stochastic_rounding"
RAMPS: Final = ("warmup", "warmdown")
UNITS: Final = ("steps", "tokens", "fraction")
COUNTED: Final = frozenset({"steps", "tokens"})  # budgets whose end is known without model, data and devices


def require_settings(config: RunConfig) -> None:
    """Refuse an optimizer in conflict with its own numbers, its strategy or its schedules."""
    option, found = config.optimizer.word, config.facts(OptimizerFacts)
    if found is None:
        return
    if config.spread.cuts_parameters and not found.takes_shards:
        cut = one_of(words_of(OptimizerFacts, lambda optimizer: optimizer.takes_shards))
        whole = one_of(words_of(ModelSpread, lambda other: other.replicates))
        rule = f"one of whole parameters with optimizer={option}"
        raise wrong("strategy", rule, config.strategy.word, f"{whole}, or {cut}")
    if found.averages_steps:
        rule = f"without decay with optimizer={option}"
        config.require_option(ScheduleFacts, lambda schedule: not schedule.decays, rule, unstated=ScheduleFacts())
    require_ranges(config.optimizer.values, found)
    for name, node in (("momentum", config.momentum_schedule), ("weight_decay", config.weight_decay_schedule)):
        if not gives_nothing(node.target) and not config.optimizer.get(name):
            rule = f"none without optimizer.{name} above 0 of optimizer={option}"
            raise wrong(f"{name}_schedule", rule, node.word, f"{name}_schedule=none")


def require_ranges(node: Mapping[str, Any], found: OptimizerFacts) -> None:
    """Refuse numbers for steps that ascend, diverge or are zero; libraries check only some of them."""
    multipliers = {f"lr_multipliers.{name}": value for name, value in (node.get("lr_multipliers") or {}).items()}
    ranges = {**COMMON, **dict.fromkeys(multipliers, RATE), **found.ranges}
    for name, value in {**node, **multipliers}.items():
        allowed: Bounds | None = found.rate if name == "lr" or name.endswith("_lr") else ranges.get(name)
        if allowed is not None and _is_number(value):
            require_number(f"optimizer.{name}", value, **allowed)
    lr, decay = node.get("lr"), node.get("weight_decay")
    if lr == 0:
        raise ConfigurationError("optimizer.lr=0 trains nothing; set it above 0, or a group's own rate to 0.")
    for name, loss in found.never_zero.items():
        if node.get(name) == 0:
            raise ConfigurationError(f"optimizer.{name}=0 leaves {loss}.")
    if found.decay == "decoupled" and _is_number(lr) and _is_number(decay) and lr * decay >= 1:
        below = f"{1 / lr:.4g}"
        raise wrong("optimizer.weight_decay", f"below 1/lr={below}; 0.1 is usual", f"{decay:g}")


def rate_line(config: RunConfig) -> str | None:
    """Return a warning of a learning rate beyond the optimizer's usual ones; None without.

    A low rate is usual where training starts from given weights.
    """
    found, lr = config.facts(OptimizerFacts), config.optimizer.get("lr")
    if found is None or not _is_number(lr):
        return None
    low, high = found.usual_rates
    usual = f"the usual rates of optimizer={config.optimizer.word}, {found.usual_words}"
    if lr > high:
        advice = "the loss may rise to NaN; `-m optimizer.lr=A,B,C` compares rates"
        return f"WARNING: optimizer.lr={lr:g} is above {usual}: {advice}."
    if 0 < lr < low and config.init_from is None and config.optimizer.word == "muon":
        return f"WARNING: optimizer.lr={lr:g} is below {usual}; a rate of AdamW goes with optimizer=adamw."
    return None


def require_rounding(config: RunConfig) -> None:
    """Refuse `precision.stochastic_rounding` with an optimizer that cannot round its updates at random."""
    if config.precision.get(ROUNDING) and ROUNDING not in setting_names(config.optimizer.target):
        words = words_of(OptimizerFacts, lambda _: True)
        known = one_of([word for word in words if ROUNDING in setting_names(file_values(word)["_target_"])])
        raise wrong(f"precision.{ROUNDING}", f"false with optimizer={config.optimizer.word}", "true", known)


def require_offload(config: RunConfig, *, on_cpu: bool) -> None:
    """Refuse optimizer state in host memory on a CPU, where it already is, and with copies of it on the device."""
    if not config.optimizer_cpu_offload:
        return
    if not gives_nothing(config.spikes.target):
        raise wrong(CPU_OFFLOAD, "false with spikes, which copy the state on the device", "true", "spikes=none")
    if config.precision.get(ROUNDING) or config.optimizer.get("moments"):
        instead = f"precision.{ROUNDING}=false and optimizer.moments=null"
        raise wrong(CPU_OFFLOAD, "false with random rounding", "true", instead)
    if on_cpu:
        raise wrong(CPU_OFFLOAD, "false on a CPU, whose state is in host memory", "true")


def require_float8_head(config: RunConfig) -> None:
    """Refuse `precision.head` with a loss that leaves the head's products to others."""
    if config.precision.get("head", False):
        rule = "that makes the head's products with precision.head=true"
        config.require_option(LossFacts, lambda loss: loss.makes_head_products, rule, unstated=LossFacts())


def require_ramps_of_budget(config: RunConfig) -> None:
    """Refuse ramps longer than the run where the config alone decides its end."""
    if limits_of(config.budget).keys() <= COUNTED:
        tokens = config.batch.tokens_per_step
        end = horizon(config.budget, tokens_per_step=tokens, num_active_parameters=1, flops_per_token=1)
        checked = config.with_checked("schedule", "momentum_schedule")
        require_ramps_fit(checked, horizon=end, tokens_per_step=tokens)


def require_ramps_fit(config: RunConfig, *, horizon: Horizon, tokens_per_step: int) -> None:
    """Refuse ramps of the learning rate or the momentum longer together than the run.

    A budget of time, whose end moves, has no such rule.
    """
    if horizon.seconds is None:
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
    keys = [f"{ramp}_{unit}" for ramp in RAMPS for unit in UNITS if node.get(f"{ramp}_{unit}")]
    given = " and ".join(f"{node.key}.{name}={node.get(name)}" for name in keys)
    fixed = sum(lengths.values()) - share * num_steps
    longer = f", or budget.steps={math.ceil(fixed / (1 - share))}" if fixed and share < 1 else ""
    left = max(0, math.floor(num_steps - lengths["warmdown"]))
    fix = f"{node.key}.warmup_steps={left}{longer}" if left else "shorter ones, or a larger budget"
    raise ConfigurationError(
        f"{given} take {format_count(math.ceil(sum(lengths.values())), 'step')}, longer than the run of "
        f"{format_count(num_steps, 'step')}. Did you mean {fix}?"
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
