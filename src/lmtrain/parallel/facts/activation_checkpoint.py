"""The share of a model's blocks whose matrix products are computed twice."""

from typing import Any


def none(**_: Any) -> float:
    """Compute every block once."""
    return 0.0


def every_block(**_: Any) -> float:
    """Compute every block again in the backward pass."""
    return 1.0


def selective(**_: Any) -> float:
    """Compute again what is cheap: products with weights and fused attention are kept."""
    return 0.0


def memory_budget(*, fraction: float, **_: Any) -> float:
    """Compute again the blocks that keep nothing."""
    return 1.0 - fraction
