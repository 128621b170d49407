"""What a run's optimizer cannot be, told from its config alone: for plans too, which do without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from lmtrain.composition.nodes.facts import OWN as OWN_STRATEGIES
from lmtrain.composition.nodes.facts import spread_of
from lmtrain.composition.nodes.node import Node
from lmtrain.composition.run_config import RunConfig
from lmtrain.errors import ConfigurationError

# Options whose library cannot take sharded parameters (torch 2.11 to 2.13: its squares of partial sums are in place).
WHOLE_ONLY: Final = ("adafactor",)
SHARDED: Final = ("muon", "adamw", "adamw_8bit", "schedule_free", "lion", "rmsprop", "adagrad", "momentum", "sgd")
SCHEDULES: Final = "lmtrain.optim.schedules."
OWN: Final = "lmtrain.optim."
DECOUPLED: Final = ("muon", "adamw", "adamw_8bit", "schedule_free", "lion", "adafactor")  # a step takes lr x decay off


@dataclass(frozen=True, kw_only=True)
class Range:
    """What a number may be: at least `low` and at most `high`, or below it; `usual` is what it mostly is."""

    low: float = 0.0
    high: float = math.inf
    usual: str
    is_open: bool = True
    why: str = ""

    def refusal(self, value: float) -> str | None:
        """Return what is wrong with a value and what would do; None for nothing."""
        if self.low <= value < self.high or (value == self.high and not self.is_open):
            return None
        if self.high == math.inf:
            rule = f"not a finite number of at least {self.low:g}"
        elif self.low == -math.inf:
            rule = f"not a finite number of at most {self.high:g}"
        else:
            rule = f"not at least {self.low:g} and {'below' if self.is_open else 'at most'} {self.high:,g}"
        return f"{rule}{self.why}; {self.usual} is usual"


FADING: Final = Range(high=1.0, usual="0.95")  # the share of a running mean that stays at each step
RATE: Final = Range(high=1e4, usual="0.001 to 0.5", is_open=False)
RANGES: Final = {
    **dict.fromkeys(("momentum", "beta1", "beta2", "row_beta"), FADING),
    "weight_decay": Range(usual="0.1"),
    "eps": Range(low=1e-38, usual="1e-8", why=", which keeps a gradient of 0 from being divided by 0"),
    "beta2_decay": Range(low=-math.inf, high=0.0, is_open=False, usual="-0.8"),
    "clip_threshold": Range(low=1.0, usual="1"),
    "relative_eps": Range(usual="0.001"),
    "initial_accumulator": Range(usual="0"),
}


def require_settings(config: RunConfig) -> None:
    """Refuse an optimizer that does not go with its own numbers, its strategy or its schedules.

    Raises:
        ConfigurationError: The first thing that is wrong, with what would do.
    """
    option, strategy = config.optimizer.word, config.strategy.word
    if option in WHOLE_ONLY and _shards(config.strategy):
        msg = (
            f"optimizer={option} does not work with strategy={strategy}: it needs whole parameters; use strategy=ddp, "
            f"or one of optimizer={', '.join(SHARDED)}."
        )
        raise ConfigurationError(msg)
    schedule = config.schedule
    if option == "schedule_free" and schedule.target.startswith(SCHEDULES) and schedule.word != "constant":
        msg = (
            f"optimizer=schedule_free averages its steps in place of a decaying learning rate, and schedule="
            f"{schedule.word} decays; leave the schedule out, or use schedule=constant, with its warm-up."
        )
        raise ConfigurationError(msg)
    if config.optimizer.target.startswith(OWN):
        require_ranges(config.optimizer.values, option=option)
        require_scheduled(config, option=option)


def _shards(strategy: Node) -> bool:
    """Tell whether a strategy of ours cuts parameters; those from elsewhere are looked at where they are allowed."""
    return strategy.target.startswith(OWN_STRATEGIES) and spread_of(strategy.values).shards_over is not None


def require_scheduled(config: RunConfig, *, option: str) -> None:
    """Refuse a schedule of what the optimizer has not got, or has at 0.

    Raises:
        ConfigurationError: There is one.
    """
    for name, schedule in (("momentum", config.momentum_schedule), ("weight_decay", config.weight_decay_schedule)):
        word = schedule.word
        if word != "none" and not config.optimizer.get(name):
            has = f"optimizer.{name}=0" if name in config.optimizer else f"optimizer={option} has no {name}"
            raise ConfigurationError(
                f"{name}_schedule={word} has no effect: {has}; set optimizer.{name} above 0 where there is one, or "
                f"leave {name}_schedule=none."
            )


def require_ranges(node: Mapping[str, Any], *, option: str) -> None:
    """Refuse numbers with which a step goes uphill, grows without end or is none; libraries look at some of them only.

    Raises:
        ConfigurationError: The first of them, with what is usual.
    """
    multipliers = {f"lr_multipliers.{name}": value for name, value in (node.get("lr_multipliers") or {}).items()}
    for name, value in {**node, **multipliers}.items():
        is_rate = name == "lr" or name.endswith("_lr") or name in multipliers
        allowed = RATE if is_rate else RANGES.get(name)
        if allowed is not None and _is_number(value) and (reason := allowed.refusal(value)):
            raise ConfigurationError(f"optimizer.{name}={value:g} is {reason}.")
    if node.get("lr") == 0:
        raise ConfigurationError(
            "optimizer.lr=0 trains nothing; set it above 0. One group of parameters stays as it is with a rate or "
            "multiplier of its own at 0."
        )
    if option == "schedule_free" and node.get("beta1") == 0:
        raise ConfigurationError("optimizer.beta1=0 leaves schedule_free without its average; 0.9 is usual.")
    if option == "momentum" and node.get("momentum") == 0:
        raise ConfigurationError("optimizer.momentum=0 leaves optimizer=momentum without one; nearest: optimizer=sgd.")
    _require_decay(node, option=option)


def _require_decay(node: Mapping[str, Any], *, option: str) -> None:
    """Refuse a decay that turns weights round, and a setting of it where there is none."""
    lr, decay = node.get("lr"), node.get("weight_decay")
    for name in ("decay_embeddings", "cautious_decay"):
        if node.get(name) is True and decay == 0:
            raise ConfigurationError(
                f"optimizer.{name}=true has no effect while optimizer.weight_decay=0; nearest valid: false."
            )
    if option in DECOUPLED and _is_number(lr) and _is_number(decay) and lr * decay >= 1:
        raise ConfigurationError(
            f"optimizer.weight_decay={decay:g} at optimizer.lr={lr:g} takes {lr * decay:.2g} times a weight off it at "
            f"every step; it has to be below {1 / lr:.4g}, and 0.1 is usual."
        )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
