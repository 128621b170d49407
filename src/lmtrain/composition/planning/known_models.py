"""The facts of a config's model: from the shipped table, from earlier measurements here, or measured now."""

import hashlib
import json
from pathlib import Path
from typing import Final

from lmtrain.accounting.model.known_facts import known_facts
from lmtrain.accounting.model.model_facts import ModelFacts, facts_from_json
from lmtrain.composition.nodes.source_signatures import gives_nothing
from lmtrain.composition.planning.setting import PlannedSetting, attention_of
from lmtrain.composition.run_config import RunConfig
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.training.garbage import collecting_later

VERSION: Final = 2  # raised when the same model comes to be measured otherwise
# Settings of a model without effect on shapes and operations, by the ends of their names.
MERE_NUMBERS: Final = ("_std", "_eps", "_base")
TABLE: Final = Path(__file__).parents[2] / "simulate" / "known_models.json"


def model_facts(config: RunConfig, setting: PlannedSetting) -> ModelFacts:
    """Return the facts of the config's model for planning; a new model takes a few seconds, once.

    Raises:
        ConfigurationError: The model cannot be built.
    """
    found, cache = _known(config, setting)
    if found:
        return found
    with collecting_later():  # three of its 20 seconds of a processor
        from lmtrain.composition.planning.measured_model import measure_model  # torch: only for a new model

        facts = measure_model(config, setting)
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, facts.to_json())
    return facts


def facts_known(config: RunConfig, setting: PlannedSetting) -> ModelFacts | None:
    """Return the facts of the config's model from the table or from an earlier measurement, None where both lack it."""
    return _known(config, setting)[0]


def _known(config: RunConfig, setting: PlannedSetting) -> tuple[ModelFacts | None, Path]:
    """Return the known facts, and the file (existing or not) for those of this machine."""
    key, context_tokens = key_of(config, setting), config.batch.context_tokens
    cache = Path(config.run.cache) / "plan" / f"{key}-{context_tokens}.json"
    if found := known_facts(read_json(TABLE), key, context_tokens):
        return found, cache
    content = read_json(cache)
    return facts_from_json(content) if content else None, cache


def key_of(config: RunConfig, setting: PlannedSetting) -> str:
    """Return a hash of all causes of the facts but the context length."""
    ignored = [name for name in config.model.values if name == "attention" or name.endswith(MERE_NUMBERS)]
    nodes = (config.model.without(*ignored), attention_of(config, setting), config.loss)
    parts = {node.key: node.canonical() for node in nodes} | {
        "version": VERSION,
        "recompute": config.recompute.canonical(),
        "is_compiled": setting.cuts_blocks,
        "compute_dtype": setting.precision.compute_dtype,
        "casts_parameters": setting.casts_parameters,
    }
    if setting.precision.residual is not None and not setting.casts_parameters:
        parts["residual"] = setting.precision.residual
    if not gives_nothing(config.adapter.target):
        parts["adapter"] = config.adapter.without("start").canonical()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
