"""Learning-rate multipliers as pure functions of the step: every group's own learning rate is scaled by the same curve.

A warm-up is given in steps, or as a fraction of the run, which then fits a run of any length.
Trapezoid ("warm-up, stable, decay"): https://arxiv.org/abs/2405.18392; cosine: https://arxiv.org/abs/1608.03983.
"""

import math

from lmtrain.errors import ConfigurationError


def constant(step: int, total_steps: int, *, warmup_steps: int | None = None, warmup_fraction: float = 0.0) -> float:
    """Return 1 after a linear warm-up whose first step already moves: step 0 gives 1 / warmup_steps.

    Raises:
        ConfigurationError: the warm-up is longer than the run.
    """
    warmup_steps = _steps_of_warmup(warmup_steps, warmup_fraction, total_steps)
    return min(1.0, (step + 1) / max(1, warmup_steps))


def warmup_cosine(
    step: int,
    total_steps: int,
    *,
    final_fraction: float,
    warmup_steps: int | None = None,
    warmup_fraction: float = 0.0,
) -> float:
    """Rise linearly from 0 to 1 at `warmup_steps`, then fall along half a cosine to `final_fraction` at `total_steps`.

    Past the end it stays at `final_fraction`.

    Raises:
        ConfigurationError: the warm-up is longer than the run, or the fraction is outside [0, 1].
    """
    warmup_steps = _steps_of_warmup(warmup_steps, warmup_fraction, total_steps)
    _check_fraction("final_fraction", final_fraction)
    if step >= total_steps:
        return final_fraction
    if step < warmup_steps:
        return step / warmup_steps
    progress = (step - warmup_steps) / (total_steps - warmup_steps)
    return final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2


def trapezoid(
    step: int,
    total_steps: int,
    *,
    warmdown_fraction: float,
    final_fraction: float,
    warmup_steps: int | None = None,
    warmup_fraction: float = 0.0,
) -> float:
    """Rise to 1 over `warmup_steps` (step 0 already moves), stay, then fall linearly over the last part of the run.

    `warmdown_fraction` is that part; `final_fraction` is reached at `total_steps` and kept past the end. Where the two
    ramps overlap, the lower one counts.

    Raises:
        ConfigurationError: the warm-up is longer than the run, or a fraction is outside [0, 1].
    """
    warmup_steps = _steps_of_warmup(warmup_steps, warmup_fraction, total_steps)
    _check_fraction("warmdown_fraction", warmdown_fraction)
    _check_fraction("final_fraction", final_fraction)
    rise = min(1.0, (step + 1) / max(1, warmup_steps))
    warmdown_steps = warmdown_fraction * total_steps
    progress = (step - (total_steps - warmdown_steps)) / warmdown_steps if warmdown_steps else 0.0
    return min(rise, 1 - (1 - final_fraction) * min(1.0, max(0.0, progress)))


def _steps_of_warmup(warmup_steps: int | None, warmup_fraction: float, total_steps: int) -> int:
    """Return the steps of a warm-up given in steps, or as a fraction of the run where `warmup_steps` is None."""
    if warmup_steps is None:
        _check_fraction("warmup_fraction", warmup_fraction)
        return math.ceil(warmup_fraction * total_steps)
    if not 0 <= warmup_steps <= total_steps:
        nearest = min(max(0, warmup_steps), total_steps)
        rule = "is negative" if warmup_steps < 0 else f"is longer than the run of {total_steps} steps"
        raise ConfigurationError(f"schedule.warmup_steps={warmup_steps} {rule}; nearest valid: {nearest}.")
    return warmup_steps


def _check_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        nearest = min(max(0.0, value), 1.0)
        raise ConfigurationError(f"schedule.{name}={value} is not between 0 and 1; nearest valid: {nearest:g}.")
