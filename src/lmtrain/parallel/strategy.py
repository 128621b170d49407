"""A strategy option: Lightning's strategy, and how it changes the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.strategies import Strategy
from torch.distributed.device_mesh import DeviceMesh

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.outer_step import OuterStep


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """A Lightning strategy with the function for spreading the model over its mesh.

    `require` refuses an unfit model, before ranks start. `spread` is the option's own statement of
    facts, also read by plans: training and planning cannot differ in it. `in_model_order` gives tensors by their
    parameters' names the rows of the model. `outer` acts after each
    optimizer step.
    """

    name: str
    strategy: Strategy | str
    parallelize: Callable[[LanguageModel, DeviceMesh | None], LanguageModel]
    spread: ModelSpread
    require: Callable[[LanguageModel], object] = lambda model: None
    in_model_order: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    outer: OuterStep | None = None

    @property
    def casts_parameters(self) -> bool:
        """Return whether the strategy itself computes in the precision's dtype, so the Trainer must not."""
        return self.spread.casts_parameters


def whole(model: LanguageModel, mesh: DeviceMesh | None) -> LanguageModel:
    """Leave the model whole on every rank."""
    del mesh
    return model
