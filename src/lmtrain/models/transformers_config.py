"""The values of a config of transformers that its class may be given, known without torch."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

AS_IS: Final = "lmtrain.models.transformers_model.TransformersModel"
LENGTHS: Final = ("max_position_embeddings", "n_positions")  # the settings that name the longest text
FLOAT: Final = "__float__"  # the one key of an infinite float
# What names code to run, of a folder or of the Hub, and notes on files that a new model has not.
LEFT_OUT: Final = frozenset(
    {"architectures", "attn_implementation", "auto_map", "compression_config", "dtype", "experts_implementation"}
    | {"id2label", "label2id", "quantization_config", "task_specific_params", "torch_dtype", "transformers_version"}
)


def plain_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json without those of LEFT_OUT and private ones, at any depth.

    An infinite float becomes `{"__float__": "Infinity"}`, as transformers 5 writes it: in an override it would be text.
    """
    kept = {name: value for name, value in content.items() if name not in LEFT_OUT}
    return {name: _plain(value) for name, value in kept.items() if not name.startswith("_") or name == FLOAT}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return plain_settings(value)
    if isinstance(value, float) and math.isinf(value):
        return {FLOAT: json.dumps(value)}
    return [_plain(held) for held in value] if isinstance(value, list) else value


def decoded(value: Any) -> Any:
    """Return a value of `plain_settings` with its infinite floats."""
    if isinstance(value, Mapping):
        text = value.get(FLOAT) if len(value) == 1 else None
        return {name: decoded(held) for name, held in value.items()} if text is None else float(text)
    return [decoded(held) for held in value] if isinstance(value, list) else value
