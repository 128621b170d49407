"""A strategy option: Lightning's strategy, and how it changes the model."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning.pytorch.strategies import Strategy
from torch.distributed.device_mesh import DeviceMesh

from lmtrain.models.base import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """A Lightning strategy with the function for spreading the model over its mesh.

    `casts_parameters` says that the strategy itself computes in the precision's dtype, so the Trainer must not.
    """

    name: str
    strategy: Strategy | str
    parallelize: Callable[[LanguageModel, DeviceMesh | None], LanguageModel]
    casts_parameters: bool = False


def whole(model: LanguageModel, mesh: DeviceMesh | None) -> LanguageModel:
    """Leave the model whole on every rank."""
    del mesh
    return model
