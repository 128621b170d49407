"""What the strategies that copy the model send: gradients."""

from typing import Any

from lmtrain.accounting.training_plan.spread import ModelSpread


def single(**_: Any) -> ModelSpread:
    """Keep the whole model on one rank."""
    return ModelSpread(most_ranks=1)


def ddp(**_: Any) -> ModelSpread:
    """Keep the whole model on every rank."""
    return ModelSpread()


def auto(**_: Any) -> ModelSpread:
    """Keep the whole model on every rank, be it one or several."""
    return ModelSpread()
