"""Multipliers of the weight decay, as pure functions of the step."""

import math

from lmtrain.accounting.options.ranges import require_number


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
    require_number("weight_decay_schedule.final_fraction", fraction, at_least=0, at_most=1, usual="0")
    return fraction
