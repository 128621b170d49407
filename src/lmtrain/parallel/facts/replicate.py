"""The traffic of the strategies with whole copies of the model: gradients."""

from typing import Any

from lmtrain.accounting.training_plan.spread import ModelSpread


def single(**_: Any) -> ModelSpread:
    """Keep the whole model."""
    return ModelSpread()


def ddp(**_: Any) -> ModelSpread:
    """Keep the whole model on every rank."""
    return ModelSpread()


def auto(**_: Any) -> ModelSpread:
    """Keep the whole model on every rank, be it one or several."""
    return ModelSpread()
