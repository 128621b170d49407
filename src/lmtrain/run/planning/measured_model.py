"""Build a config's model and measure its facts for planning. Imports torch."""

from collections.abc import Callable

import torch

from lmtrain.accounting.model.model_facts import ModelFacts
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.errors import LMTRAIN_ERRORS, ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.transformers_config import AS_IS
from lmtrain.run.builders.model import adapter_of
from lmtrain.run.planning.setting import attention_of
from lmtrain.run.run_config import RunConfig
from lmtrain.simulate.measured_facts import SimulatedStep, measure


def measure_model(config: RunConfig, setting: Setting) -> ModelFacts:
    """Measure the model and recomputation of a config on fake tensors."""
    step = SimulatedStep(
        build=model_builder(config, setting),
        compute_dtype=getattr(torch, setting.precision.compute_dtype),
        recompute=config.recompute.checked(config.allowed).build(),
        recomputes=setting.recompute.recomputes,
        is_compiled=setting.cuts_blocks,
        casts_parameters=setting.casts_parameters,
        narrows_residual=setting.precision.residual is not None,
        masks_documents=setting.masks_documents,
    )
    try:
        return measure(step, context_tokens=config.batch.context_tokens)
    except Exception as problem:
        if config.model.target != AS_IS or isinstance(problem, LMTRAIN_ERRORS):
            raise
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
        raise ConfigurationError(
            f"model.path={config.model.get('path')}: its class cannot run on fake tensors ({reason}), so it cannot be "
            "planned; it may train with strategy=single, where the device has room."
        ) from problem


def model_builder(config: RunConfig, setting: Setting) -> Callable[[], LanguageModel]:
    """Return what builds a config's model, with its adapter and an attention to measure with."""
    option = config.model
    if "attention" in option:
        option = option.changed(attention=attention_of(config, setting).values)
    model, adapter = option.checked(config.allowed), adapter_of(config.adapter.checked(config.allowed))

    def build() -> LanguageModel:
        built: LanguageModel = model.build()
        return built if adapter is None else adapter.attach(built, seed=config.seed)

    return build
