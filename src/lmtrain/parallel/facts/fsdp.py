"""FSDP's shards and traffic."""

from typing import Any

from lmtrain.accounting.training_plan.spread import ModelSpread


def fsdp(*, reshard_after_forward: bool = True, **_: Any) -> ModelSpread:
    """Shard over all ranks, and compute with weights that are cast as they are gathered."""
    return ModelSpread(shards_over="all ranks", casts_parameters=True, reshard_after_forward=reshard_after_forward)
