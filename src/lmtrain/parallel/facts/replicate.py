"""What the strategies that copy the model send: gradients."""

from typing import Any

from lmtrain.accounting.training_plan.spread import Spread


def single(**_: Any) -> Spread:
    """Keep the whole model."""
    return Spread()


def ddp(**_: Any) -> Spread:
    """Keep the whole model on every rank."""
    return Spread()


def auto(**_: Any) -> Spread:
    """Keep the whole model on every rank, be it one or several."""
    return Spread()
