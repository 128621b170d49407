"""A run's optimizer: tried on its model before anything is prepared, and told of group by group when it is built."""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer

from lmtrain.composition.instantiate import instantiate
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.optim.parameter_groups import group_lines, require_each_once

# Options whose library cannot take sharded parameters (torch 2.11 to 2.13: its squares of partial sums are in place).
WHOLE_ONLY: Final = ("adafactor",)
SHARDED: Final = ("muon", "adamw", "adamw_8bit", "schedule_free", "lion", "rmsprop", "adagrad", "momentum", "sgd")
SCHEDULES: Final = "lmtrain.optim.schedules."
OWN: Final = "lmtrain.optim."
FADING: Final = ("momentum", "beta1", "beta2", "row_beta")  # shares of a running mean that stay at each step
SIZES: Final = ("eps", "weight_decay")


def require_optimizer(config: dict[str, Any]) -> None:
    """Build the optimizer of a run on a model without memory, so that it is refused before any data is prepared.

    Raises:
        ConfigurationError: It does not go with its settings, its model, its strategy or its schedule.
        EnvironmentProblem: Its package is missing.
    """
    option, strategy = _word(config["optimizer"]), _word(config["strategy"])
    if option in WHOLE_ONLY and strategy == "fsdp":
        msg = (
            f"optimizer={option} does not work with strategy={strategy}: it needs whole parameters; use strategy=ddp, "
            f"or one of optimizer={', '.join(SHARDED)}."
        )
        raise ConfigurationError(msg)
    schedule = str(config["schedule"]["_target_"])
    if option == "schedule_free" and schedule.startswith(SCHEDULES) and _word(config["schedule"]) != "constant":
        msg = (
            f"optimizer=schedule_free averages its steps in place of a decaying learning rate, and schedule="
            f"{_word(config['schedule'])} decays; leave the schedule out, or use schedule=constant, with its warm-up."
        )
        raise ConfigurationError(msg)
    if str(config["optimizer"]["_target_"]).startswith(OWN):
        require_ranges(config["optimizer"], option=option)
    with torch.device("meta"):
        model: LanguageModel = instantiate(config["model"], key="model")
    require_each_once(model, _build(instantiate(config["optimizer"], key="optimizer"), model, option=option))


def require_ranges(node: dict[str, Any], *, option: str) -> None:
    """Refuse numbers with which a step goes uphill, grows without end or is none; libraries look at some of them only.

    Raises:
        ConfigurationError: The first of them, with the nearest that is valid.
    """
    multipliers = {f"lr_multipliers.{name}": value for name, value in (node.get("lr_multipliers") or {}).items()}
    for name, value in (node | multipliers).items():
        if not isinstance(value, (int, float)):
            continue
        is_rate = name == "lr" or name.endswith("_lr") or name in multipliers
        if (is_rate or name in SIZES) and not 0 <= value < math.inf:
            told = "negative; nearest valid: 0" if value < 0 else "not a finite number; set one of at least 0"
            raise ConfigurationError(f"optimizer.{name}={value:g} is {told}.")
        if name in FADING and not 0 <= value < 1:
            nearest = "0" if value < 0 else "0.95"
            raise ConfigurationError(
                f"optimizer.{name}={value:g} is not at least 0 and below 1; nearest usual: {nearest}."
            )
    if option == "schedule_free" and node.get("beta1") == 0:
        raise ConfigurationError("optimizer.beta1=0 leaves schedule_free without its average; 0.9 is usual.")


def build_optimizer(
    config: dict[str, Any], *, rank: int, stochastic_rounding: bool = False
) -> Callable[[LanguageModel], Optimizer]:
    """Return what builds the optimizer of a run, and tells of its groups once."""
    facts = {"stochastic_rounding": stochastic_rounding}
    make = instantiate(config["optimizer"], key="optimizer", facts=facts)
    option = _word(config["optimizer"])

    def build(model: LanguageModel) -> Optimizer:
        optimizer = _build(make, model, option=option)
        if rank == 0:
            print("\n  ".join([f"optimizer={option}", *group_lines(optimizer)]), flush=True)
        return optimizer

    return build


def _build(make: Callable[[LanguageModel], Optimizer], model: LanguageModel, *, option: str) -> Optimizer:
    """Build an optimizer, and word a library's refusal of its settings as ours."""
    try:
        return make(model)
    except LMTRAIN_ERRORS:
        raise
    except (ValueError, AssertionError) as refusal:
        reason = str(refusal) or "its library refuses a setting without a word; lr must be above 0, betas within 0 to 1"
        raise ConfigurationError(f"optimizer={option}: {reason}.") from refusal


def _word(node: dict[str, Any]) -> str:
    """Return the last part of a node's target, which is the option's word."""
    return str(node["_target_"]).rpartition(".")[2]
