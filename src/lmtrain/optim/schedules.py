"""Learning-rate multipliers as pure functions of the step: every group's own learning rate is scaled by the same curve.

A warm-up (or warm-down) is given in steps, in tokens, or as a fraction of the run, fit for any length.
No curve moves past the end of its run, and where two ramps overlap the lower one counts: each is defined for every
length; `ramp_steps` finds ramps too long for their run. Trapezoid ("warm-up, stable, decay") and its cool-down
from a checkpoint: https://arxiv.org/abs/2405.18392; cosine: https://arxiv.org/abs/1608.03983; inverse square root:
https://arxiv.org/abs/1706.03762, section 5.3.
"""

import math
from typing import Final

from lmtrain.accounting.options.parts import ScheduleFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.errors import ConfigurationError


def constant(
    step: int,
    total_steps: int,
    *,
    warmup_steps: int | None = None,
    warmup_tokens: int | None = None,
    warmup_fraction: float | None = None,
    tokens_per_step: int | None = None,
) -> float:
    """Return 1 after a linear warm-up, above 0 from its first step: step 0 gives 1 / warmup_steps."""
    warmup = whole_warmup(warmup_steps, warmup_tokens, warmup_fraction, tokens_per_step, total_steps)
    return _early_rise(min(step, total_steps), warmup)


def warmup_cosine(
    step: int,
    total_steps: int,
    *,
    final_fraction: float,
    warmup_steps: int | None = None,
    warmup_tokens: int | None = None,
    warmup_fraction: float | None = None,
    tokens_per_step: int | None = None,
) -> float:
    """Rise linearly from 0 to 1 at the warm-up's end, then fall along half a cosine to `final_fraction`."""
    warmup = whole_warmup(warmup_steps, warmup_tokens, warmup_fraction, tokens_per_step, total_steps)
    if step < min(warmup, total_steps):
        return step / warmup
    progress = _progress(step, warmup, total_steps)
    return _final(final_fraction) + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2


def linear(
    step: int,
    total_steps: int,
    *,
    final_fraction: float,
    peak_fraction: float = 1.0,
    warmup_steps: int | None = None,
    warmup_tokens: int | None = None,
    warmup_fraction: float | None = None,
    tokens_per_step: int | None = None,
) -> float:
    """Rise linearly from 0 to `peak_fraction` at the warm-up's end, then fall linearly to `final_fraction` of it."""
    require_number("schedule.peak_fraction", peak_fraction, above=0, usual="0.1")
    warmup = whole_warmup(warmup_steps, warmup_tokens, warmup_fraction, tokens_per_step, total_steps)
    if step < min(warmup, total_steps):
        return peak_fraction * step / warmup
    return peak_fraction * (1 - (1 - _final(final_fraction)) * _progress(step, warmup, total_steps))


def inverse_sqrt(
    step: int,
    total_steps: int,
    *,
    warmup_steps: int | None = None,
    warmup_tokens: int | None = None,
    warmup_fraction: float | None = None,
    tokens_per_step: int | None = None,
) -> float:
    """Rise linearly from 0 to 1 at the warm-up's end, then fall as sqrt(warmup / step)."""
    warmup = whole_warmup(warmup_steps, warmup_tokens, warmup_fraction, tokens_per_step, total_steps)
    if warmup < 1 and not warmup_fraction:
        raise ConfigurationError("schedule.warmup_steps must be at least 1, got 0.")
    step = min(step, total_steps)
    return step / warmup if step < warmup else math.sqrt(max(1, warmup) / max(1, step))


def trapezoid(
    step: int,
    total_steps: int,
    *,
    final_fraction: float,
    warmup_steps: int | None = None,
    warmup_tokens: int | None = None,
    warmup_fraction: float | None = None,
    warmdown_steps: int | None = None,
    warmdown_tokens: int | None = None,
    warmdown_fraction: float | None = None,
    tokens_per_step: int | None = None,
) -> float:
    """Rise to 1 over the warm-up (step 0 already moves), stay, then fall linearly over the warm-down.

    `final_fraction` is reached at `total_steps`.
    """
    warmup = whole_warmup(warmup_steps, warmup_tokens, warmup_fraction, tokens_per_step, total_steps)
    warmdown = ramp_steps("warmdown", warmdown_steps, warmdown_tokens, warmdown_fraction, tokens_per_step, total_steps)
    fall = _progress(step, total_steps - warmdown, total_steps) if warmdown else 0.0
    return min(_early_rise(min(step, total_steps), warmup), 1 - (1 - _final(final_fraction)) * fall)


def cooldown(step: int, total_steps: int, *, final_fraction: float, start_step: int | None) -> float:
    """Fall linearly from 1 at `start_step`, a checkpoint's step, to `final_fraction` at the end."""
    if start_step is None:
        raise ConfigurationError(
            "schedule.start_step must be the step of a checkpoint, got null; fork a run with "
            "resume=runs/NAME/checkpoints/step_... and another run.name."
        )
    if not 0 <= start_step < total_steps:
        raise ConfigurationError(
            f"schedule.start_step must be at least 0 and before the run's end at step {total_steps}, got {start_step}. "
            f"Did you mean budget.steps={start_step + max(1, start_step // 5)}?"
        )
    return 1 - (1 - _final(final_fraction)) * _progress(step, start_step, total_steps)


def whole_warmup(
    steps: int | None, tokens: int | None, fraction: float | None, tokens_per_step: int | None, total_steps: int
) -> int:
    """Return the steps of a warm-up, rounded up: a given one lasts at least a step, a part of a run not all of it."""
    warmup = math.ceil(ramp_steps("warmup", steps, tokens, fraction, tokens_per_step, total_steps))
    return warmup if fraction is None or fraction == 1 else min(warmup, max(0, total_steps - 1))


def ramp_steps(
    name: str,
    steps: int | None,
    tokens: int | None,
    fraction: float | None,
    tokens_per_step: int | None,
    total_steps: int,
    *,
    key: str = "schedule",
) -> float:
    """Return how many steps the ramp called `name` takes, given in at most one of three ways; 0 for none.

    `key` is the schedule's in messages.
    """
    ways: dict[str, float | None] = {f"{name}_steps": steps, f"{name}_tokens": tokens, f"{name}_fraction": fraction}
    given = {f"{key}.{way}": value for way, value in ways.items() if value is not None}
    if len(given) > 1:
        words = " and ".join(f"{way}={value}" for way, value in given.items())
        raise ConfigurationError(f"{words} exclude each other; set {[*given][-2]}=null.")
    for way, value in given.items():
        require_number(way, value, at_least=0, usual="0")
    if fraction is not None:
        return _fraction(f"{key}.{name}_fraction", fraction) * total_steps
    if tokens is not None:
        if not tokens_per_step:
            raise ConfigurationError(f"{key}.{name}_tokens={tokens} needs tokens_per_step to count steps by.")
        return tokens / tokens_per_step
    return float(steps or 0)


def _early_rise(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / max(1, warmup))


def _progress(step: int, start: float, end: int) -> float:
    """Return the done part of the way from `start` to `end`: 0 before it, 1 past it."""
    return min(1.0, max(0.0, (step - start) / (end - start))) if end > start else 1.0


def _final(fraction: float) -> float:
    return _fraction("schedule.final_fraction", fraction)


def _fraction(key: str, value: float) -> float:
    usual = value / 100 if 2 <= value <= 100 else min(max(0.0, value), 1.0)
    require_number(key, value, at_least=0, at_most=1, usual=f"{usual:g}")
    return value


CONSTANT_FACTS: Final = ScheduleFacts()
WARMUP_COSINE_FACTS = LINEAR_FACTS = INVERSE_SQRT_FACTS = TRAPEZOID_FACTS = COOLDOWN_FACTS = ScheduleFacts(decays=True)


def range_test(step: int, total_steps: int, *, lowest: float, highest: float) -> float:
    """Rise from `lowest` at step 0 to `highest` at the last one, by the same factor each step."""
    require_number("schedule.lowest", lowest, above=0, below=highest, usual="0.001")
    last = max(1, total_steps - 1)
    return lowest * (highest / lowest) ** (min(step, last) / last)
