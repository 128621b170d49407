"""Refusals of a run's optimizer from its config alone: for plans too, without torch."""

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from lmtrain.accounting.model.optimizer_state import OptimizerState
from lmtrain.accounting.options.optimizer import OptimizerFacts
from lmtrain.accounting.options.parts import ScheduleFacts
from lmtrain.accounting.options.ranges import COMMON, RATE, Range
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of, options_saying
from lmtrain.run.schema.source_signatures import gives_nothing

OWN: Final = "lmtrain.optim"


def optimizer_states() -> dict[str, OptimizerState]:
    """Return the state kept by each optimizer of ours, at its default settings."""
    return {name: facts.state for name, facts in _own_optimizers().items()}


def require_settings(config: RunConfig) -> None:
    """Refuse an optimizer in conflict with its own numbers, its strategy or its schedules.

    An optimizer without facts has no rules.

    Raises:
        ConfigurationError: The first error, with a valid alternative.
    """
    option, allowed = config.optimizer.word, config.allowed
    found = facts_of(config.optimizer.values, OptimizerFacts, allowed=allowed)
    if found is None:
        return
    spread = facts_of(config.strategy.values, ModelSpread, allowed=allowed) or ModelSpread()
    if spread.cuts_parameters and not found.takes_shards:
        can = [word for word, facts in _own_optimizers().items() if facts.takes_shards]
        whole = one_of(words_of(ModelSpread, lambda other: other.replicates))
        raise ConfigurationError(
            f"optimizer={option} does not work with strategy={config.strategy.word}: it needs whole parameters; "
            f"use {whole}, or one of optimizer={', '.join(can)}."
        )
    schedule = facts_of(config.schedule.values, ScheduleFacts, allowed=allowed) or ScheduleFacts()
    if found.averages_steps and schedule.decays:
        level = one_of(words_of(ScheduleFacts, lambda other: not other.decays))
        raise ConfigurationError(
            f"optimizer={option} averages its steps in place of a decaying learning rate, and schedule="
            f"{config.schedule.word} decays; leave the schedule out, or use {level}, with its warm-up."
        )
    require_ranges(config.optimizer.values, found)
    require_scheduled(config, option=option)


def rate_line(config: RunConfig) -> str | None:
    """Return a warning of a learning rate above the optimizer's usual ones; None without."""
    found = facts_of(config.optimizer.values, OptimizerFacts, allowed=config.allowed)
    lr = config.optimizer.get("lr")
    if found is None or not _is_number(lr) or lr <= found.usual_rates[1]:
        return None
    return (
        f"WARNING: optimizer.lr={lr:g} is above what optimizer={config.optimizer.word} usually bears, "
        f"{found.usual_words}: the loss may rise to NaN; `lmtrain tune lr` finds a rate for this model."
    )


def _own_optimizers() -> dict[str, OptimizerFacts]:
    return {target.rpartition(".")[2]: facts for target, facts in options_saying(OWN, OptimizerFacts)}


def require_scheduled(config: RunConfig, *, option: str) -> None:
    """Refuse a schedule of a setting absent from the optimizer, or 0 in it.

    Raises:
        ConfigurationError: There is one.
    """
    for name, schedule in (("momentum", config.momentum_schedule), ("weight_decay", config.weight_decay_schedule)):
        if not gives_nothing(schedule.target) and not config.optimizer.get(name):
            has = f"optimizer.{name}=0" if name in config.optimizer else f"optimizer={option} has no {name}"
            raise ConfigurationError(
                f"{name}_schedule={schedule.word} has no effect: {has}; set optimizer.{name} above 0 where there is "
                f"one, or leave {name}_schedule=none."
            )


def require_ranges(node: Mapping[str, Any], found: OptimizerFacts) -> None:
    """Refuse numbers for steps that ascend, diverge or are zero; libraries check only some of them.

    Raises:
        ConfigurationError: The first of them, with the usual value.
    """
    multipliers = {f"lr_multipliers.{name}": value for name, value in (node.get("lr_multipliers") or {}).items()}
    ranges = {**COMMON, **dict.fromkeys(multipliers, RATE), **found.ranges}
    for name, value in {**node, **multipliers}.items():
        allowed: Range | None = found.rate if name == "lr" or name.endswith("_lr") else ranges.get(name)
        if allowed is not None and _is_number(value) and (reason := allowed.refusal(value)):
            raise ConfigurationError(f"optimizer.{name}={value:g} is {reason}.")
    if node.get("lr") == 0:
        raise ConfigurationError(
            "optimizer.lr=0 trains nothing; set it above 0. One group of parameters stays as it is with a rate or "
            "multiplier of its own at 0."
        )
    for name, loss in found.never_zero.items():
        if node.get(name) == 0:
            raise ConfigurationError(f"optimizer.{name}=0 leaves {loss}.")
    _require_decay(node, is_decoupled=found.decay == "decoupled")


def _require_decay(node: Mapping[str, Any], *, is_decoupled: bool) -> None:
    """Refuse a decay large enough to reverse weights' signs, and a setting of it where there is none."""
    lr, decay = node.get("lr"), node.get("weight_decay")
    for name in ("decay_embeddings", "cautious_decay"):
        if node.get(name) is True and decay == 0:
            raise ConfigurationError(
                f"optimizer.{name}=true has no effect while optimizer.weight_decay=0; nearest valid: false."
            )
    if is_decoupled and _is_number(lr) and _is_number(decay) and lr * decay >= 1:
        raise ConfigurationError(
            f"optimizer.weight_decay={decay:g} at optimizer.lr={lr:g} takes {lr * decay:.2g} times a weight off it at "
            f"every step; it has to be below {1 / lr:.4g}, and 0.1 is usual."
        )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
