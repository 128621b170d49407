"""Build a config's model and measure what planning needs to know of it. Imports torch."""

from collections.abc import Sequence
from typing import Any

import torch

from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.composition.nodes.check import check_node
from lmtrain.composition.nodes.instantiate import instantiate
from lmtrain.composition.planning.setting import PlannedSetting, attention_of, context_tokens_of
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.simulate.measure import measure
from lmtrain.simulate.step_memory import SimulatedStep


def measure_model(config: dict[str, Any], setting: PlannedSetting, *, allowed: Sequence[str]) -> ModelFacts:
    """Measure the model, loss and recomputation of a config on fake tensors.

    Raises:
        ConfigurationError: One of them cannot be built.
    """
    model = {**config["model"]}
    if "attention" in model:
        model["attention"] = attention_of(config, setting)
    nodes = {
        key: check_node(node, key=key, allowed=allowed)
        for key, node in (("model", model), ("loss", config["loss"]), ("recompute", config["recompute"]))
    }

    def build() -> LanguageModel:
        try:
            return instantiate(nodes["model"], key="model")
        except RuntimeError as failure:  # torch's word on sizes that cannot be
            reason = str(failure).partition("\n")[0]
            raise ConfigurationError(f"model={config['model']['_target_']} cannot be built: {reason}.") from failure

    step = SimulatedStep(
        build=build,
        loss=instantiate(nodes["loss"], key="loss"),
        compute_dtype=getattr(torch, setting.precision.compute_dtype),
        recompute=instantiate(nodes["recompute"], key="recompute"),
        recomputes=setting.recompute.recomputes,
        is_compiled=setting.cuts_blocks,
        casts_parameters=setting.casts_parameters,
        narrows_residual=setting.precision.residual is not None,
    )
    return measure(step, context_tokens=context_tokens_of(config))
