"""From a budget to a horizon: how many steps and tokens a run goes on for."""

import math
from dataclasses import asdict, dataclass
from typing import Final

from lmtrain.errors import ConfigurationError

# A ratio is a target, not a limit: 20 tokens per parameter is met by 19.9999, and a whole step of a million tokens
# for the last few thousand would only move the ratio away from it.
RATIO_TOLERANCE: Final = 1e-5


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend; of those that are set, the one that is reached first ends it."""

    steps: int | None = None
    tokens: int | None = None
    tokens_per_parameter: float | None = None
    flops: float | None = None


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """Where a run ends: at the first step at or past its budget. FLOPs are by PaLM's convention."""

    steps: int
    tokens: int
    flops: int
    limited_by: str


def horizon(budget: Budget, *, tokens_per_step: int, num_parameters: int, flops_per_token: int) -> Horizon:
    """Return the first step at or past the budget.

    `num_parameters` is what tokens_per_parameter multiplies; `flops_per_token` is PaLM's.
    Raises: ConfigurationError when no budget is set, or one is not above 0.
    """
    limits = {name: value for name, value in asdict(budget).items() if value is not None}
    if not limits:
        raise ConfigurationError(
            "budget is empty: set one of budget.tokens, budget.steps, budget.tokens_per_parameter or budget.flops."
        )
    for name, value in limits.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigurationError(f"budget.{name}={value} is not above 0; a run needs at least one step.")
    size_of_step = {
        "steps": 1,
        "tokens": tokens_per_step,
        "tokens_per_parameter": tokens_per_step / num_parameters,
        "flops": tokens_per_step * flops_per_token,
    }
    steps = {
        name: _first_step_past(value, size_of_step[name], RATIO_TOLERANCE if name == "tokens_per_parameter" else 0)
        for name, value in limits.items()
    }
    limited_by = min(steps, key=lambda name: steps[name])
    tokens = steps[limited_by] * tokens_per_step
    return Horizon(steps=steps[limited_by], tokens=tokens, flops=tokens * flops_per_token, limited_by=limited_by)


def _first_step_past(limit: float, size_of_step: float, tolerance: float) -> int:
    if isinstance(limit, int) and isinstance(size_of_step, int):
        return -(-limit // size_of_step)
    return max(1, math.ceil(limit * (1 - tolerance) / size_of_step))
