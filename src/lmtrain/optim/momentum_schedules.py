"""The momentum of a step, as a pure function of the step: Muon's rises early and falls again before the end.

Values as in nanochat (https://github.com/karpathy/nanochat): 0.85 to 0.97 over 400 steps, to 0.90 in the warm-down.
"""

from lmtrain.errors import ConfigurationError


def none() -> None:
    """Leave the optimizer's momentum as it is."""


def rise_and_fall(
    step: int,
    total_steps: int,
    momentum: float,
    *,
    initial: float,
    final: float,
    warmup_steps: int,
    warmdown_fraction: float,
) -> float:
    """Rise linearly from `initial` to the optimizer's `momentum` over `warmup_steps`; end at `final`.

    The fall takes the last `warmdown_fraction` of the run. Where both overlap, the lower one counts.

    Raises:
        ConfigurationError: A momentum is not in [0, 1), or a length is none.
    """
    for name, value in (("initial", initial), ("final", final)):
        if not 0 <= value < 1:
            raise ConfigurationError(f"momentum_schedule.{name}={value} is not at least 0 and below 1; 0.9 is usual.")
    if warmup_steps < 0:
        raise ConfigurationError(f"momentum_schedule.warmup_steps={warmup_steps} is negative; nearest valid: 0.")
    if not 0 <= warmdown_fraction <= 1:
        nearest = min(max(0.0, warmdown_fraction), 1.0)
        raise ConfigurationError(
            f"momentum_schedule.warmdown_fraction={warmdown_fraction} is not between 0 and 1; "
            f"nearest valid: {nearest:g}."
        )
    risen = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    warmdown = warmdown_fraction * total_steps
    fallen = min(1.0, max(0.0, (step - total_steps + warmdown) / warmdown)) if warmdown else 0.0
    return min(initial + (momentum - initial) * risen, momentum + (final - momentum) * fallen)
