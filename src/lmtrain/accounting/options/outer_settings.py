"""The settings of an outer step over workers: turns, rates, and the formats of deltas as they are sent."""

from typing import Final, Literal

from lmtrain.accounting.model.optimizer_state import FP32_BYTES
from lmtrain.errors import ConfigurationError

DeltaFormat = Literal["fp32", "bf16"]
VALUE_BYTES: Final[dict[str, int]] = {"fp32": 4, "bf16": 2}


def delta_bytes(delta: str) -> int:
    """Return the bytes of a value.

    Raises:
        ConfigurationError: A format unknown here.
    """
    if delta not in VALUE_BYTES:
        raise ConfigurationError(f"strategy.delta={delta} must be one of {', '.join(VALUE_BYTES)}.")
    return VALUE_BYTES[delta]


def outer_bytes(momentum: float) -> int:
    """Return the bytes per parameter next to a worker's own: its global weight, and the momentum where there is one."""
    return FP32_BYTES * (2 if momentum else 1)


def require_turns(every_steps: int, num_fragments: int) -> None:
    """Refuse steps not divided by the fragments.

    Raises:
        ConfigurationError: With the nearest number of steps.
    """
    for key, value in (("every_steps", every_steps), ("num_fragments", num_fragments)):
        if value < 1:
            raise ConfigurationError(f"strategy.{key}={value} is below 1. Did you mean 1?")
    if every_steps % num_fragments:
        nearest = max(1, round(every_steps / num_fragments)) * num_fragments
        raise ConfigurationError(
            f"strategy.every_steps={every_steps} is not a multiple of strategy.num_fragments={num_fragments}, which "
            f"meet in turns. Did you mean strategy.every_steps={nearest}?"
        )


def require_outer(lr: float, momentum: float) -> None:
    """Refuse an outer step at a standstill or in divergence.

    Raises:
        ConfigurationError: With the usual value.
    """
    if not 0 < lr <= 2:
        raise ConfigurationError(
            f"strategy.outer_lr={lr:g} is not above 0 and at most 2, beyond which outer steps diverge; 0.7 is usual, "
            "and 1 without momentum takes the workers' mean."
        )
    if not 0 <= momentum < 1:
        raise ConfigurationError(
            f"strategy.outer_momentum={momentum:g} is not at least 0 and below 1; 0.9 is usual, and 0 keeps none."
        )
