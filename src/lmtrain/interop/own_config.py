"""The `config.json` of a model that no class of transformers computes: it names the code beside the weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.interop.model_settings import MODELS, TARGET, WITHOUT_EFFECT
from lmtrain.models.gpt2 import GPT2

OWN_TYPE: Final = "lmtrain"
OWN_PREFIX: Final = "model."  # of the names of weights, which are ours below it
CODE: Final = Path(__file__).with_name("own_code") / "modeling_lmtrain.py"


def own_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model's completed settings."""
    kept = {name: _plain(value) for name, value in settings.items() if name not in (TARGET, *WITHOUT_EFFECT)}
    return {
        "architectures": ["LmtrainForCausalLM"],
        "model_type": OWN_TYPE,
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.LmtrainConfig",
            "AutoModelForCausalLM": f"{CODE.stem}.LmtrainForCausalLM",
        },
        "family": "gpt2" if MODELS[settings[TARGET]] is GPT2 else "llama",
        "settings": kept,
        "vocab_size": settings["vocab_size"],
        "hidden_size": settings["width"],
        "num_hidden_layers": settings["num_layers"],
        "num_attention_heads": settings["num_heads"],
        "max_position_embeddings": settings["max_context_tokens"],
        "initializer_range": settings["init_std"],
        "tie_word_embeddings": False,  # a tied head has no weight of its own: there is nothing to tie
        "use_cache": False,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items() if name != TARGET}
    return list(value) if isinstance(value, list | tuple) else value
