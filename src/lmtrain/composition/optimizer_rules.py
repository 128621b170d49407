"""What a run's optimizer cannot be, told from its config alone: for plans too, which do without torch."""

import math
from typing import Any, Final

from lmtrain.errors import ConfigurationError

# Options whose library cannot take sharded parameters (torch 2.11 to 2.13: its squares of partial sums are in place).
WHOLE_ONLY: Final = ("adafactor",)
SHARDED: Final = ("muon", "adamw", "adamw_8bit", "schedule_free", "lion", "rmsprop", "adagrad", "momentum", "sgd")
SCHEDULES: Final = "lmtrain.optim.schedules."
OWN: Final = "lmtrain.optim."
FADING: Final = ("momentum", "beta1", "beta2", "row_beta")  # shares of a running mean that stay at each step
SIZES: Final = ("eps", "weight_decay")


def require_settings(config: dict[str, Any]) -> None:
    """Refuse an optimizer that does not go with its own numbers, its strategy or its schedule.

    Raises:
        ConfigurationError: The first thing that is wrong, with what would do.
    """
    option, strategy = word_of(config["optimizer"]), word_of(config["strategy"])
    if option in WHOLE_ONLY and strategy == "fsdp":
        msg = (
            f"optimizer={option} does not work with strategy={strategy}: it needs whole parameters; use strategy=ddp, "
            f"or one of optimizer={', '.join(SHARDED)}."
        )
        raise ConfigurationError(msg)
    schedule = str(config["schedule"]["_target_"])
    if option == "schedule_free" and schedule.startswith(SCHEDULES) and word_of(config["schedule"]) != "constant":
        msg = (
            f"optimizer=schedule_free averages its steps in place of a decaying learning rate, and schedule="
            f"{word_of(config['schedule'])} decays; leave the schedule out, or use schedule=constant, with its warm-up."
        )
        raise ConfigurationError(msg)
    if str(config["optimizer"]["_target_"]).startswith(OWN):
        require_ranges(config["optimizer"], option=option)


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


def word_of(node: dict[str, Any]) -> str:
    """Return the last part of a node's target, which is the option's word."""
    return str(node["_target_"]).rpartition(".")[2]
