"""Multipliers of the weight decay, as pure functions of the step."""

import math

from lmtrain.errors import ConfigurationError


def none() -> None:
    """Leave the optimizer's weight decay as it is."""


def linear(step: int, total_steps: int, *, final_fraction: float) -> float:
    """Fall linearly from 1 to `final_fraction` at the run's end, and stay there."""
    return 1 - (1 - _checked(final_fraction)) * _progress(step, total_steps)


def cosine(step: int, total_steps: int, *, final_fraction: float) -> float:
    """Fall along half a cosine from 1 to `final_fraction` at the run's end, and stay there."""
    done = _progress(step, total_steps)
    return _checked(final_fraction) + (1 - final_fraction) * (1 + math.cos(math.pi * done)) / 2


def _progress(step: int, total_steps: int) -> float:
    return min(1.0, step / total_steps)


def _checked(fraction: float) -> float:
    if not 0 <= fraction <= 1:
        nearest = 1 if fraction > 1 else 0
        raise ConfigurationError(
            f"weight_decay_schedule.final_fraction={fraction} is not between 0 and 1; nearest valid: {nearest}."
        )
    return fraction
