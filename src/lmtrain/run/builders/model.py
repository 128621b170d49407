"""A run's model with its adapter, on the meta device and trained, and the strategy that spreads it over ranks."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.adapters.lora import Lora
from lmtrain.interop.peft_adapters import PeftFolder, fill_adapters, open_peft
from lmtrain.models.base import LanguageModel, unchanged
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import require_facts
from lmtrain.run.schema.node import Node
from lmtrain.run.schema.signatures import gives_nothing

if TYPE_CHECKING:  # importing lightning takes seconds, and a plan needs none of it
    from lmtrain.parallel.strategy import Parallelism
    from lmtrain.training.transforms import ModelTransform


def adapter_of(node: Node | None) -> Lora | None:
    """Return the adapter of a checked node; None where every weight trains."""
    return None if node is None or gives_nothing(node.target) else node.build()


def planned_model(config: RunConfig) -> LanguageModel:
    """Build the model of a run on the meta device as it is trained: with its adapter's parameters, others frozen."""
    with torch.device("meta"):
        model: LanguageModel = config.model.build()
    adapter = adapter_of(config.adapter)
    return model if adapter is None else adapter.attach(model, seed=config.seed)


def adapting(config: RunConfig) -> "ModelTransform":
    """Return the transform of a materialised model: adapters from the seed, or from the folder to start from."""
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


def build_strategy(config: RunConfig, *, facts: Mapping[str, Any]) -> "Parallelism":
    """Build the strategy, which must state its facts."""
    require_facts(config.strategy.values, ModelSpread, allowed=config.allowed)
    return config.strategy.build(facts=facts)


def require_strategy(config: RunConfig, model: LanguageModel) -> None:
    """Let the strategy look at its ranks and the model, as a run does before its data."""
    place = {"num_ranks": config.num_ranks, "compute_dtype": torch.float32}  # the format changes no refusal
    build_strategy(config, facts=place).require(model)


def model_on_paper(config: RunConfig) -> LanguageModel:
    """Build the model on the meta device, and let the strategy look at its ranks and at it, before there is a run."""
    with torch.device("meta"):
        model: LanguageModel = config.model.checked(config.allowed).build()
        require_strategy(config, model)
    return model
