"""A composed configuration as flat parameters, for comparing runs on a tracking server."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

MAXIMUM_VALUE_CHARACTERS = 6000
MAXIMUM_KEY_CHARACTERS = 250


def flatten(config: Mapping[str, object]) -> dict[str, str]:
    """Return {"optimizer.lr": "0.001", ...}: one entry a leaf; a list is one leaf, written as JSON."""
    flat: dict[str, str] = {}
    _collect(config, "", flat)
    return flat


def tracking_key(key: str) -> str:
    """Return a key with an underscore for every character refused in names by tracking servers."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-. /" else "_" for c in key)[:MAXIMUM_KEY_CHARACTERS]


def _collect(node: Mapping[str, object], prefix: str, flat: dict[str, str]) -> None:
    for name, value in node.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            _collect(cast("Mapping[str, object]", value), f"{key}.", flat)
        else:
            flat[tracking_key(key)] = _text(value)[:MAXIMUM_VALUE_CHARACTERS]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


PARTS: Final = (
    "model", "optimizer", "schedule", "loss", "attention", "precision", "strategy", "recompute", "compile", "tokenizer",
    "source", "objective", "adapter",
)  # fmt: skip
NUMBERS: Final = (
    "seed", "model.width", "model.num_layers", "model.num_heads", "optimizer.lr", "optimizer.weight_decay",
    "batch.context_tokens", "batch.tokens_per_step", "trainer.devices", "trainer.num_nodes",
)  # fmt: skip
OF_PLAN: Final = {
    "parameters": ("parameters", "total"),
    "steps": ("horizon", "steps"),
    "tokens": ("horizon", "tokens"),
    "flops": ("horizon", "flops"),
}
NOT_OF_A_RUN: Final = ("run.", "logger", "hydra", "sweep.", "resume")


def readable_params(config: Mapping[str, object], overrides: Iterable[str], plan: Mapping[str, Any]) -> dict[str, str]:
    """Return {"model": "Llama", "optimizer.lr": "0.001", ...}."""
    flat = flatten(config)
    named = {part: flat.get(f"{part}._target_", "").rpartition(".")[2] for part in PARTS}
    found = {part: name for part, name in named.items() if name not in ("", "none")}
    found |= {key: flat[key] for key in NUMBERS if key in flat}
    found |= {key: value for key, value in flat.items() if key.startswith("budget.") and _is_set(key, value)}
    for word in overrides:
        typed, _, value = word.lstrip("+~").partition("=")
        key = tracking_key(typed)
        if typed and not typed.startswith(NOT_OF_A_RUN):
            found[key] = flat.get(key, value[:MAXIMUM_VALUE_CHARACTERS])
    for name, (group, key) in OF_PLAN.items():
        value = plan.get(group, {}).get(key)
        if value is not None:
            found[f"plan.{name}"] = f"{value:.15g}"
    return found


def _is_set(key: str, value: str) -> bool:
    return value != "null" and not key.endswith("_target_")
