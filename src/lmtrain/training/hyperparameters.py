"""An optimizer's settings by step: set before each step from the step's number alone.

Nothing of this is saved: a resumed run computes the same values, and the config's own settings hold, not those of a
checkpoint.
"""

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor
from torch.optim import Optimizer

from lmtrain.errors import ConfigurationError

Multiplier = Callable[[int, int], float]  # (step, total_steps)
MomentumCurve = Callable[[int, int, float], float]  # (step, total_steps, the optimizer's momentum)
# Replaced by the config's after a resume: no counts, and no choice of a kernel, which the state follows.
SETTINGS: Final = (
    *("lr", "momentum", "weight_decay", "betas", "beta1", "beta2", "eps", "nesterov", "alpha", "beta2_decay", "d"),
    *("cautious_decay", "row_beta", "stochastic_rounding"),
)


class Hyperparameters:
    """Hold each group's configured values, and set a step's share of them."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        lr: Multiplier,
        momentum: MomentumCurve | None = None,
        weight_decay: Multiplier | None = None,
    ) -> None:
        """Take the groups' present values for the configured ones; None leaves a setting there."""
        self._optimizer = optimizer
        self._lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._configured: list[dict[str, Any]] = [
            {
                name: value.item() if isinstance(value, Tensor) else value
                for name, value in group.items()
                if name in SETTINGS
            }
            for group in optimizer.param_groups
        ]
        self._factors: dict[str, float] | None = None  # the values since the last step
        self._first_lr = 0.0
        self._to_set = SETTINGS  # all of them once, since a checkpoint may have brought others
        schedules = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self._scheduled_settings = tuple(name for name, schedule in schedules.items() if schedule is not None)
        for name, schedule in (("momentum", momentum), ("weight_decay", weight_decay)):
            if schedule is not None and not any(group.get(name) for group in self._configured):
                raise ConfigurationError(
                    f"{name}_schedule has no effect: {type(optimizer).__name__} has no {name}; choose "
                    f"{name}_schedule=none, or optimizer.{name} above 0."
                )

    def set_for(self, step: int, total_steps: int) -> float:
        """Set the values of `step`, counted from 0; return the first group's learning rate."""
        factors = {"lr": self._lr(step, total_steps)}
        if self._weight_decay is not None:
            factors["weight_decay"] = self._weight_decay(step, total_steps)
        if self._momentum is None and factors == self._factors:
            return self._first_lr
        self._factors = factors
        for group, configured in zip(self._optimizer.param_groups, self._configured, strict=True):
            for name in self._to_set:
                if name in configured:
                    value = configured[name]
                    if name == "momentum" and self._momentum is not None and value:
                        value = self._momentum(step, total_steps, value)
                    _set(group, name, value * factors[name] if name in factors else value)
        self._to_set = self._scheduled_settings
        self._first_lr = float(self._optimizer.param_groups[0]["lr"])
        return self._first_lr


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    """Set a number, or fill its tensor where a compiled step reads one."""
    if isinstance(group[name], Tensor):
        group[name].fill_(value)
    else:
        group[name] = value
