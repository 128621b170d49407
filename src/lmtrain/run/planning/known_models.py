"""The facts of a config's model: from the shipped table, from earlier measurements, or measured now."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.model.model_facts import DEPTHS, ModelFacts, at_depth, facts_from_json, known_facts
from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.errors import ConfigurationError
from lmtrain.run.planning.setting import attention_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.training.lean_import import collecting_later

VERSION: Final = 5  # raised when the same model is measured differently
ALIKE_FROM: Final = 8  # blocks: each later one counts as much as the one before
MOST_BLOCKS: Final = 1_000_000
# Endings of a model's settings that change neither shapes nor operations.
MERE_NUMBERS: Final = ("_std", "_eps", "_base")
TABLE: Final = Path(__file__).parents[2] / "simulate" / "known_models.json"


def model_facts(config: RunConfig, setting: Setting) -> ModelFacts:
    """Return the facts of the config's model; a new model takes a few seconds, once.

    Raises:
        ConfigurationError: The model cannot be built.
    """
    if found := facts_known(config, setting):
        return found
    depth = depth_of(config)
    configs = [config] if depth is None else at_depths(config)
    with collecting_later():  # three of its 20 seconds of a processor
        from lmtrain.run.planning.measured_model import measure_models  # torch: only for a new model

        facts = measure_models(configs, setting)
    for one, measured in zip(configs, facts, strict=True):
        cache = _known(one, setting)[1]
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, measured.to_json())
    return facts[0] if depth is None else at_depth(facts[0], facts[1], depth)


def facts_known(config: RunConfig, setting: Setting) -> ModelFacts | None:
    """Return the facts of the config's model from the table or an earlier measurement, None for a new model."""
    found = _known(config, setting)[0]
    if found or (depth := depth_of(config)) is None:
        return found
    few, more = (_known(one, setting)[0] for one in at_depths(config))
    return at_depth(few, more, depth) if few and more else None


def depth_of(config: RunConfig) -> int | None:
    """Return the number of a model's blocks where there are some beyond ALIKE_FROM and all those are alike, else None.

    Raises:
        ConfigurationError: There are too many.
    """
    if (name := _counts_blocks(config)) is None:
        return None
    key, typed = f"{config.model.key}.{name}", config.model.get(name)
    num_blocks = parse_quantity(typed, key)
    if num_blocks > MOST_BLOCKS:
        raise ConfigurationError(f"{key} must be at most {MOST_BLOCKS:,} blocks, got {typed}.")
    return int(num_blocks) if num_blocks > ALIKE_FROM and float(num_blocks).is_integer() else None


def at_depths(config: RunConfig) -> list[RunConfig]:
    """Return the same config at each of DEPTHS, nothing where its blocks may differ."""
    name = _counts_blocks(config)
    return [replace(config, model=config.model.changed(**{name: blocks})) for blocks in DEPTHS] if name else []


def _counts_blocks(config: RunConfig) -> str | None:
    """Return the setting for the number of a model's blocks, None where those beyond ALIKE_FROM may differ."""
    if not gives_nothing(config.adapter.target):  # it may be in some blocks only
        return None
    said = facts_of(config.model.values, ScalingFacts, allowed=config.allowed, key=config.model.key)
    return said.counts_blocks if said and said.alike_from <= ALIKE_FROM else None


def _known(config: RunConfig, setting: Setting) -> tuple[ModelFacts | None, Path]:
    """Return the known facts, and the file (existing or not) for those of this machine."""
    key, context_tokens = key_of(config, setting), config.batch.context_tokens
    cache = Path(config.run.cache) / "plan" / f"{key}-{context_tokens}.json"
    if found := known_facts(read_json(TABLE), key, context_tokens):
        return found, cache
    content = read_json(cache)
    return facts_from_json(content) if content else None, cache


def key_of(config: RunConfig, setting: Setting) -> str:
    """Return a hash of everything that decides the facts but the context length."""
    ignored = [name for name in config.model.values if name == "attention" or name.endswith(MERE_NUMBERS)]
    nodes = (config.model.without(*ignored), attention_of(config, setting))
    parts = {node.key: node.canonical() for node in nodes} | {
        "version": VERSION,
        "recompute": config.recompute.canonical(),
        "is_compiled": setting.cuts_blocks,
        "compute_dtype": setting.precision.compute_dtype,
        "casts_parameters": setting.casts_parameters,
    }
    if setting.precision.residual is not None and not setting.casts_parameters:
        parts["residual"] = setting.precision.residual
    if setting.masks_documents:
        parts["masks_documents"] = True
    if not gives_nothing(config.adapter.target):
        parts["adapter"] = config.adapter.without("start").canonical()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
