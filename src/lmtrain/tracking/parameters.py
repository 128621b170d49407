"""A composed configuration as flat parameters, for comparing runs on a tracking server."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

MAXIMUM_VALUE_CHARACTERS = 6000
MAXIMUM_KEY_CHARACTERS = 250


def flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return {"optimizer.lr": "0.001", ...}: one entry a leaf; a list is one leaf, written as JSON."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(cast("Mapping[str, object]", value), f"{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            flat[tracking_key(key)] = text[:MAXIMUM_VALUE_CHARACTERS]
    return flat


def tracking_key(key: str) -> str:
    """Return a key with an underscore for every character refused in names by tracking servers."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-. /" else "_" for c in key)[:MAXIMUM_KEY_CHARACTERS]


RESOLVED: Final = "resolved"  # the choices in a plan.json, by their groups: what runs where the config says auto
NOT_OF_A_RUN: Final = ("run.", "logger.", "hydra.", "sweep.", "resume")
OF_PLAN: Final = {
    "parameters": ("parameters", "total"),
    "steps": ("horizon", "steps"),
    "tokens": ("horizon", "tokens"),
    "flops": ("horizon", "flops"),
}


def run_parameters(config: Mapping[str, object], plan: Mapping[str, Any]) -> dict[str, str]:
    """Return the leaves of a config that belong to the run itself, its choices, and the main numbers of its plan."""
    found = {key: value for key, value in flatten(config).items() if not key.startswith(NOT_OF_A_RUN)}
    for key, value in plan.get(RESOLVED, {}).items():
        found = {name: each for name, each in found.items() if not f".{name}".endswith(f".{key}._target_")}
        found[key] = value
    for name, (group, key) in OF_PLAN.items():
        value = plan.get(group, {}).get(key)
        if value is not None:
            found[f"plan.{name}"] = f"{value:.15g}"
    return found
