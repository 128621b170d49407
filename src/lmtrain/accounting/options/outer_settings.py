"""The settings of an outer step over workers: turns, rates, and the formats of deltas as they are sent."""

from typing import Final, Literal

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError

DeltaFormat = Literal["fp32", "bf16"]
DELTA_BYTES: Final = {"fp32": 4, "bf16": 2}  # of a value


def require_turns(every_steps: int, num_fragments: int) -> None:
    """Refuse steps not divided by the fragments."""
    require_count("strategy.every_steps", every_steps)
    require_count("strategy.num_fragments", num_fragments)
    if every_steps % num_fragments:
        nearest = max(1, round(every_steps / num_fragments)) * num_fragments
        raise ConfigurationError(
            f"strategy.every_steps={every_steps} is not a multiple of strategy.num_fragments={num_fragments}, which "
            f"meet in turns. Did you mean strategy.every_steps={nearest}?"
        )


def require_outer(lr: float, momentum: float) -> None:
    """Refuse an outer step at a standstill or in divergence."""
    require_number("strategy.outer_lr", lr, above=0, at_most=2, usual="0.7")
    require_number("strategy.outer_momentum", momentum, at_least=0, below=1, usual="0.9")
