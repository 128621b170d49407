"""The changes to a plain model before training, in one visible order; "off" leaves it as it is."""

from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed.device_mesh import DeviceMesh

from lmtrain.models.base import LanguageModel, unchanged
from lmtrain.parallel.strategy import whole

ModelTransform = Callable[[LanguageModel], LanguageModel]


@dataclass(frozen=True, kw_only=True)
class ModelTransforms:
    """The transforms of a materialised, initialised model."""

    start_from: ModelTransform = unchanged  # weights of an earlier training in place of the random ones
    adapt: ModelTransform = unchanged  # trained parameters beside frozen weights
    precision: ModelTransform = unchanged
    recompute: ModelTransform = unchanged
    compile: ModelTransform = unchanged
    parallelize: Callable[[LanguageModel, DeviceMesh | None], LanguageModel] = whole

    def apply(self, model: LanguageModel, mesh: DeviceMesh | None) -> LanguageModel:
        """Start from given weights, adapt, choose the precision, recompute, compile, parallelize: in this order."""
        model = self.start_from(model)
        model = self.adapt(model)
        model = self.precision(model)
        model = self.recompute(model)
        model = self.compile(model)
        return self.parallelize(model, mesh)
