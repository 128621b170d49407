"""The facts of a config's model: from the table that ships, from what was measured here before, or measured now."""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.model_facts import ModelFacts, facts_from_json
from lmtrain.composition.planned_setting import PlannedSetting, attention_of
from lmtrain.tracking.atomic_files import read_json, write_json

VERSION: Final = 1  # raised when the same model comes to be measured otherwise
TABLE: Final = Path(__file__).parents[1] / "simulate" / "known_models.json"


def model_facts(config: dict[str, Any], setting: PlannedSetting, *, allowed: list[str]) -> ModelFacts:
    """Return what planning needs to know of the config's model; one that is new takes a few seconds, once.

    Raises:
        ConfigurationError: The model cannot be built.
    """
    key = key_of(config, setting)
    cache = Path(config["run"]["cache"]) / "plan" / f"{key}.json"
    table: dict[str, Any] = read_json(TABLE)
    content: dict[str, Any] = table.get(key) or read_json(cache)
    if content:
        return facts_from_json(content)
    from lmtrain.composition.measured_model import measure_model  # torch: only for a model that is new

    facts = measure_model(config, setting, allowed=allowed)
    cache.parent.mkdir(parents=True, exist_ok=True)
    write_json(cache, facts.to_json())
    return facts


def key_of(config: dict[str, Any], setting: PlannedSetting) -> str:
    """Return a hash of everything that decides the facts."""
    parts = {
        "version": VERSION,
        "model": {name: value for name, value in config["model"].items() if name != "attention"},
        "attention": attention_of(config, setting),
        "loss": config["loss"],
        "recompute": config["recompute"],
        "is_compiled": setting.is_compiled,
        "compute_dtype": setting.compute_dtype,
        "casts_parameters": setting.casts_parameters,
        "context_tokens": config["batch"]["context_tokens"],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
