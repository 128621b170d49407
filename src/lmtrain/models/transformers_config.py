"""The values of a config of transformers that its class may be given, known without torch."""

from collections.abc import Mapping
from typing import Any, Final

AS_IS: Final = "lmtrain.models.transformers_model.TransformersModel"
# What names code to run, of a folder or of the Hub, and notes on files that a new model has not.
LEFT_OUT: Final = frozenset(
    {"architectures", "attn_implementation", "auto_map", "compression_config", "dtype", "experts_implementation"}
    | {"id2label", "label2id", "quantization_config", "task_specific_params", "torch_dtype", "transformers_version"}
)


def plain_settings(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config.json without those of LEFT_OUT and private ones, at any depth."""
    kept = {name: value for name, value in content.items() if name not in LEFT_OUT}
    return {
        name: plain_settings(value) if isinstance(value, Mapping) else value
        for name, value in kept.items()
        if not name.startswith("_") or name == "__float__"  # infinity, as transformers writes it
    }
