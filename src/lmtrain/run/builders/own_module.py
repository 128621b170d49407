"""`module=NAME`: a LightningModule of a person's own in the place of ours, with the run's model, data and callbacks."""

from collections.abc import Mapping
from typing import Final

import lightning.pytorch as pl
import torch

from lmtrain.accounting.batches import MICRO_BATCH, BatchPlan
from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.callbacks.text_samples import TextSamples
from lmtrain.callbacks.validation import Validation
from lmtrain.errors import wrong
from lmtrain.models.base import LanguageModel
from lmtrain.run.compose.group_options import one_of, words_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.training.module import materialize
from lmtrain.training.transforms import ModelTransform

OF_OURS: Final = (Validation, TextSamples)  # callbacks that score and sample by CausalLMModule's parts


def causal_lm() -> None:
    """Train by `CausalLMModule`."""


def own_module(
    config: RunConfig, model: LanguageModel, batch: BatchPlan, *, start_from: ModelTransform
) -> pl.LightningModule | None:
    """Return the person's module around the run's model; None where ours trains. `start_from` gives first weights.

    Raises:
        ConfigurationError: The strategy cuts the model, or manual optimization is asked to accumulate micro-batches.
    """
    if gives_nothing(config.module.target):
        return None
    if not (config.spread.replicates or config.spread.most_ranks == 1):
        whole = one_of(words_of(ModelSpread, lambda other: other.replicates))
        raise wrong("strategy", f"one of a whole model with module={config.module.word}", config.strategy.word, whole)
    model = start_from(materialize(model, device=torch.device("cpu"), seed=config.seed))
    module: pl.LightningModule = config.module.build()(model)
    if batch.accumulation_micro_steps > 1 and not module.automatic_optimization:
        rule = f"{batch.sequences_per_rank}, a rank's share of a step, with module={config.module.word}"
        raise wrong(MICRO_BATCH, rule, batch.sequences_per_micro_step)
    return module


def fitting_callbacks(
    callbacks: Mapping[str, pl.Callback], module: pl.LightningModule | None
) -> dict[str, pl.Callback]:
    """Return the callbacks that work with a person's module; all of them with ours (None)."""
    return {name: one for name, one in callbacks.items() if module is None or not isinstance(one, OF_OURS)}
