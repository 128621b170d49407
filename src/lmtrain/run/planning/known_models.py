"""The facts of a config's model: from the shipped table, from earlier measurements, or measured now."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.model.model_facts import ModelFacts, facts_from_json, known_facts
from lmtrain.accounting.training_plan.setting import Setting
from lmtrain.run.planning.setting import attention_of
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.signatures import gives_nothing
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.training.lean_import import collecting_later

VERSION: Final = 5  # raised when the same model is measured differently
# Endings of a model's settings that change neither shapes nor operations.
MERE_NUMBERS: Final = ("_std", "_eps", "_base")
TABLE: Final = Path(__file__).parents[2] / "simulate" / "known_models.json"


def model_facts(config: RunConfig, setting: Setting) -> ModelFacts:
    """Return the facts of the config's model; a new model takes a few seconds, once."""
    found, file = _known(config, setting)
    if found:
        return found
    with collecting_later():  # a tenth of its seconds of a processor
        from lmtrain.run.planning.measured_model import measure_model  # torch: only for a new model

        facts = measure_model(config, setting)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, facts.to_json())
    return facts


def facts_known(config: RunConfig, setting: Setting) -> ModelFacts | None:
    """Return the facts of the config's model where it need not be measured."""
    return _known(config, setting)[0]


def _known(config: RunConfig, setting: Setting) -> tuple[ModelFacts | None, Path]:
    """Return the known facts, and the file (existing or not) for those of this machine."""
    key, context_tokens = key_of(config, setting), config.batch.context_tokens
    kept = Path(config.run.cache) / "plan" / f"{key}-{context_tokens}.json"
    if found := known_facts(_table(TABLE), key, context_tokens):
        return found, kept
    content = read_json(kept)
    return facts_from_json(content) if content else None, kept


@cache
def _table(path: Path) -> dict[str, Any]:
    return read_json(path)


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
