"""The `config.json` of a model without a class in transformers: it names the code beside the weights.

`own_config` writes it, `own_settings` reads it back.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import DataError
from lmtrain.interop.model_settings import MODELS, TARGET, node_of
from lmtrain.interop.without_effect import WITHOUT_EFFECT
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import LinearRopeScaling, RopeScaling

OWN_TYPE: Final = "lmtrain"
OWN_PREFIX: Final = "model."  # of the names of weights; below it they are ours
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


def own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config written by `own_config`.

    Raises:
        DataError: Another program wrote it, or it is damaged.
    """
    kinds, kept = {"gpt2": GPT2, "llama": Llama}, config.get("settings")
    kind = kinds.get(str(config.get("family")))
    if kind is None or not isinstance(kept, Mapping):
        raise DataError('config.json of model_type=lmtrain has no "family" and "settings"; export the model again.')
    settings = {name: value for name, value in kept.items() if name not in PARTS_OF}
    parts = {name: node_of(find(kept[name]), **kept[name]) for name, find in PARTS_OF.items() if kept.get(name)}
    return node_of(kind, **settings, **parts)


def _scaling(settings: Mapping[str, Any]) -> type:
    return LinearRopeScaling if set(settings) == {"factor"} else RopeScaling


PARTS_OF: Final[dict[str, Callable[[Mapping[str, Any]], type]]] = {
    "rope_scaling": _scaling,
    "experts": lambda settings: Experts,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items() if name != TARGET}
    return list(value) if isinstance(value, list | tuple) else value
