"""A run's adapter: its part in a model without memory, for counting, and in the trained one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from lmtrain.adapters.lora import Lora
from lmtrain.interop.peft_adapters import PeftFolder, fill_adapters, open_peft
from lmtrain.models.base import LanguageModel
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.source_signatures import gives_nothing
from lmtrain.training.transforms import ModelTransform, unchanged


def adapter_of(node: Node | None) -> Lora | None:
    """Return the adapter of a checked node; None where every weight trains."""
    return None if node is None or gives_nothing(node.target) else node.build()


def planned_model(config: RunConfig, build: Callable[[], LanguageModel] | None = None) -> LanguageModel:
    """Build the model of a run on the meta device as it is trained: with its adapter's parameters, others frozen.

    Raises:
        ConfigurationError: The adapter does not go with the model.
    """
    with torch.device("meta"):
        model: LanguageModel = (build or config.model.build)()
    adapter = adapter_of(config.adapter)
    return model if adapter is None else adapter.attach(model, seed=config.seed)


def adapting(config: RunConfig) -> ModelTransform:
    """Return the transform of a materialised model: adapters from the seed, or from the folder to start from.

    Raises:
        ConfigurationError: The folder is of another adapter.
        DataError: It is damaged, or of another model.
    """
    adapter = adapter_of(config.adapter)
    if adapter is None:
        return unchanged
    start = None if adapter.start is None else open_peft(Path(adapter.start))
    if start is not None:
        start.require(adapter)
    return partial(_adapt, adapter=adapter, seed=config.seed, start=start)


def _adapt(model: LanguageModel, *, adapter: Lora, seed: int, start: PeftFolder | None) -> LanguageModel:
    model = adapter.attach(model, seed=seed)
    if start is not None:
        fill_adapters(model, start)
    return model
