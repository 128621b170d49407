"""A run's strategy, held to the facts of its plan."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from lmtrain.accounting.options.strategy import ModelSpread
from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.parallel.strategy import Parallelism
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import require_facts


def build_strategy(config: RunConfig, *, facts: Mapping[str, Any]) -> Parallelism:
    """Build the strategy; one made of another, by `replace`, has to bring its own facts.

    Raises:
        ConfigurationError: It refuses its ranks, states no facts, or trains by others than those.
    """
    parallelism: Parallelism = config.strategy.build(facts=facts)
    stated = require_facts(config.strategy.values, ModelSpread, allowed=config.allowed)
    trained, planned, word = asdict(parallelism.spread), asdict(stated), config.strategy.word
    for name in planned:
        if trained[name] != planned[name]:
            raise ConfigurationError(
                f"strategy={word} trains with {name}={trained[name]} and is planned with {name}={planned[name]}; "
                f"give its Parallelism spread={word}_facts(), with the same settings."
            )
    return parallelism


def require_strategy(config: RunConfig, model: LanguageModel) -> None:
    """Let the strategy look at its ranks and the model, as a run does before its data.

    Raises:
        ConfigurationError: It refuses them, or trains on no rank.
    """
    place = {"num_ranks": config.num_ranks, "compute_dtype": torch.float32}  # the format changes no refusal
    build_strategy(config, facts=place).require(model)


def require_strategy_on_paper(config: RunConfig) -> None:
    """Let the strategy look at its ranks and the model before there is one: on the meta device."""
    with torch.device("meta"):
        require_strategy(config, config.model.checked(config.allowed).build())
