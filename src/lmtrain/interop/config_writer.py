"""The `config.json` of transformers for a model, with rotary settings in the style of release 5 and before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.interop.folders import WITHOUT_EFFECT
from lmtrain.interop.model_settings import MODELS, TARGET, default_of, off_default
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama_settings import layer_windows

ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
LLAMA_SETTINGS = frozenset(
    {"num_kv_heads", "head_width", "rope_base", "rope_scaling", "norm_eps", "tie_embeddings"}
    | {"window_tokens", "window_pattern", "qk_norm", "qk_norm_over", "experts"}
)
GPT2_SETTINGS = frozenset({"feed_forward_width", "norm_eps", "gelu_approximate"})
ACTIVATION_FUNCTIONS = {"tanh": "gelu_new", "none": "gelu"}  # of GPT-2, by model.gelu_approximate


class NoClass(ConfigurationError):
    """No class of transformers computes a model."""


def write_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model's completed settings.

    Raises:
        NoClass: No class of transformers computes this model; the settings in the way are named.
    """
    _require_known(settings)
    if MODELS[settings[TARGET]] is GPT2:
        return _gpt2(settings)
    model_type = _model_type(settings)
    config = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": settings["vocab_size"],
        "hidden_size": settings["width"],
        "intermediate_size": settings["feed_forward_width"],
        "num_hidden_layers": settings["num_layers"],
        "num_attention_heads": settings["num_heads"],
        "num_key_value_heads": settings["num_kv_heads"] or settings["num_heads"],
        "head_dim": settings["head_width"] or settings["width"] // settings["num_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": settings["max_context_tokens"],
        "initializer_range": settings["init_std"],
        "rms_norm_eps": settings["norm_eps"],
        "tie_word_embeddings": settings["tie_embeddings"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    return config | _rope(settings) | _windows(settings, model_type) | _experts(settings, model_type)


def _require_known(settings: Mapping[str, Any]) -> None:
    known = GPT2_SETTINGS if MODELS[settings[TARGET]] is GPT2 else LLAMA_SETTINGS
    unknown = {name: value for name, value in off_default(settings).items() if name not in known}
    if unknown:
        changed = ", ".join(f"model.{name}={value}" for name, value in unknown.items())
        nearest = " ".join(f"model.{name}={_word(default_of(settings, name))}" for name in unknown)
        raise NoClass(
            f"{changed}: no class of transformers has this, so that neither vLLM nor llama.cpp computes the model. "
            f"Train one that they do: {nearest}, or model=qwen_3_0_6b with your own dimensions."
        )


def _model_type(settings: Mapping[str, Any]) -> str:
    experts, over = settings["experts"], settings["qk_norm_over"] if settings["qk_norm"] else None
    if experts is not None:
        found = {None: "mixtral", "width": "olmoe", "head": "qwen3_moe"}[over]
        if found == "mixtral" and not experts["normalize_weights"]:
            raise _without_class("model.experts.normalize_weights=false", "model.experts.normalize_weights=true")
    else:
        if over == "width":
            raise _without_class("model.qk_norm_over=width without model.experts", "model.qk_norm_over=head")
        found = "qwen3" if over else "mistral" if settings["window_tokens"] or not _divides(settings) else "llama"
    if settings["window_pattern"] and found != "qwen3":
        raise _without_class(f"model.window_pattern={settings['window_pattern']}", "model.window_pattern=null")
    if settings["window_tokens"] and found in ("olmoe", "qwen3_moe"):
        raise _without_class(f"model.window_tokens={settings['window_tokens']}", "model.window_tokens=null")
    head_width = settings["head_width"]
    if found == "olmoe" and head_width not in (None, settings["width"] // settings["num_heads"]):
        raise _without_class(f"model.head_width={head_width}", "model.head_width=null")
    return found


def _divides(settings: Mapping[str, Any]) -> bool:
    """Return whether heads divide the width, as transformers' Llama requires; its Mistral, else the same, does not."""
    return settings["width"] % settings["num_heads"] == 0


def _without_class(setting: str, nearest: str) -> NoClass:
    return NoClass(f"{setting}: no class of transformers computes this with the other settings; try {nearest}.")


def _rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary settings in both styles: `rope_parameters` (release 5), `rope_theta` with `rope_scaling` (4)."""
    theta, scaling = settings["rope_base"], settings["rope_scaling"]
    if scaling is None:
        kind, old = {"rope_type": "default"}, None
    elif "original_context_tokens" in scaling:
        kind = {
            "rope_type": "llama3",
            "factor": scaling["factor"],
            "low_freq_factor": scaling["low_frequency_factor"],
            "high_freq_factor": scaling["high_frequency_factor"],
            "original_max_position_embeddings": scaling["original_context_tokens"],
        }
        old = kind
    else:
        kind = {"rope_type": "linear", "factor": scaling["factor"]}
        old = {"type": "linear", **kind}
    return {"rope_parameters": {"rope_theta": theta, **kind}, "rope_theta": theta, "rope_scaling": old}


def _windows(settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    window = settings["window_tokens"]
    if model_type in ("mistral", "mixtral"):
        return {"sliding_window": window}
    if model_type != "qwen3":
        return {}
    pattern = settings["window_pattern"]
    windows = layer_windows(settings["num_layers"], window_tokens=window, pattern=pattern)
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": sum(width is None for width in windows),
        "layer_types": ["full_attention" if width is None else "sliding_attention" for width in windows],
    }


def _experts(settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    experts = settings["experts"]
    if experts is None:
        return {}
    config = {
        "num_local_experts" if model_type == "mixtral" else "num_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_token"],
        "router_aux_loss_coef": experts["load_balance_weight"],
        "output_router_logits": False,
    }
    if model_type == "mixtral":
        return config
    config["norm_topk_prob"] = experts["normalize_weights"]
    if model_type == "qwen3_moe":
        width = settings["feed_forward_width"]
        config |= {"moe_intermediate_size": width, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


def _gpt2(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES["gpt2"]],
        "model_type": "gpt2",
        "vocab_size": settings["vocab_size"],
        "n_embd": settings["width"],
        "n_layer": settings["num_layers"],
        "n_head": settings["num_heads"],
        "n_positions": settings["max_context_tokens"],
        "n_ctx": settings["max_context_tokens"],
        "n_inner": settings["feed_forward_width"],
        "activation_function": ACTIVATION_FUNCTIONS[settings["gelu_approximate"]],
        "layer_norm_epsilon": settings["norm_eps"],
        "initializer_range": settings["init_std"],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        "tie_word_embeddings": True,
        "use_cache": True,
    }


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
        "tie_word_embeddings": False,  # a tied head has no separate weight to tie
        "use_cache": False,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items() if name != TARGET}
    return list(value) if isinstance(value, list | tuple) else value
