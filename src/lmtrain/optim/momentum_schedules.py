"""The momentum of a step, as a pure function of the step: Muon's rises early and falls again before the end.

Values as in nanochat (https://github.com/karpathy/nanochat): 0.85 to 0.97 over 400 steps, to 0.90 in the warm-down.
"""

from lmtrain.accounting.options.ranges import require_number


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
    """
    for name, value in (("initial", initial), ("final", final)):
        require_number(f"momentum_schedule.{name}", value, at_least=0, below=1, usual="0.9")
    require_number("momentum_schedule.warmup_steps", warmup_steps, at_least=0, usual="0")
    require_number("momentum_schedule.warmdown_fraction", warmdown_fraction, at_least=0, at_most=1, usual="0.2")
    risen = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    warmdown = warmdown_fraction * total_steps
    fallen = min(1.0, max(0.0, (step - total_steps + warmdown) / warmdown)) if warmdown else 0.0
    return min(initial + (momentum - initial) * risen, momentum + (final - momentum) * fallen)
