"""The `config.json` of transformers for a model, and a model's settings from one; unsupported features are refused.

Rotary settings are written in the style of release 5 and of the releases before, and read in either.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, DataError
from lmtrain.interop.folders import WITHOUT_EFFECT
from lmtrain.interop.model_settings import MODELS, TARGET, default_of, node_of, off_default
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.llama_settings import layer_windows
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import LinearRopeScaling, RopeScaling

ARCHITECTURES: Final = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
# Our settings and their keys, equal in meaning: whole numbers, and others.
GPT2_COUNTS: Final = {
    "width": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "max_context_tokens": "n_positions",
}
LLAMA_COUNTS: Final = {
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
    "max_context_tokens": "max_position_embeddings",
}
LLAMA_SCALING: Final = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "original_context_tokens": "original_max_position_embeddings",
}
ACTIVATION_FUNCTIONS: Final = {"tanh": "gelu_new", "none": "gelu"}  # of GPT-2, by model.gelu_approximate
# Settings of ours, beyond the counts, that some class of transformers has.
LLAMA_SETTINGS: Final = frozenset(
    {"num_kv_heads", "head_width", "rope_base", "rope_scaling", "norm_eps", "tie_embeddings"}
    | {"window_tokens", "window_pattern", "qk_norm", "qk_norm_over", "experts"}
)
GPT2_SETTINGS: Final = frozenset({"feed_forward_width", "norm_eps", "gelu_approximate", "biases"})

# What transformers' config classes take where config.json has no such key.
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gpt2": {},
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "mistral": {
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "mixtral": {
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
    },
    "olmoe": {
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.01,
    },
    "qwen3": {
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3_moe": {
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.001,
    },
}
ROPE_BASES: Final = {"mixtral": 1_000_000.0}  # without rope_theta; of the others 10,000
# Features of a config, and the only supported value of each.
ONLY: Final[dict[str, Any]] = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "clip_qkv": None,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "router_jitter_noise": 0.0,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# Keys without effect on the function that the weights compute.
KEYS_WITHOUT_EFFECT: Final = frozenset(
    {"_name_or_path", "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    | {"initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "pretraining_tp", "n_ctx"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "output_router_logits"}
    | {"reorder_and_upcast_attn", "attn_implementation", "_attn_implementation", "auto_map", "cache_implementation"}
    | {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}
    | {"output_attentions", "output_hidden_states", "return_dict", "is_decoder", "is_encoder_decoder"}
)


class NoClass(ConfigurationError):
    """No class of transformers computes a model."""


def write_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model's completed settings.

    Raises:
        NoClass: No class of transformers computes this model; the settings in the way are named.
    """
    is_gpt2 = MODELS[settings[TARGET]] is GPT2
    known = GPT2_SETTINGS if is_gpt2 else LLAMA_SETTINGS
    if unknown := {name: value for name, value in off_default(settings).items() if name not in known}:
        changed = ", ".join(f"model.{name}={value}" for name, value in unknown.items())
        nearest = " ".join(f"model.{name}={_word(default_of(settings, name))}" for name in unknown)
        raise NoClass(
            f"{changed}: not supported by any class of transformers, nor by vLLM and llama.cpp; use {nearest}."
        )
    return _write_gpt2(settings) if is_gpt2 else _write_llama(settings)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _write_gpt2(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [ARCHITECTURES["gpt2"]],
        "model_type": "gpt2",
        **{theirs: settings[ours] for ours, theirs in GPT2_COUNTS.items()},
        "n_ctx": settings["max_context_tokens"],
        "n_inner": settings["feed_forward_width"],
        "activation_function": ACTIVATION_FUNCTIONS[settings["gelu_approximate"]],
        "layer_norm_epsilon": settings["norm_eps"],
        "initializer_range": settings["init_std"],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        "tie_word_embeddings": True,
        "use_cache": True,
    }


def _write_llama(settings: Mapping[str, Any]) -> dict[str, Any]:
    model_type = _type_of(settings)
    config = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        **{theirs: settings[ours] for ours, theirs in LLAMA_COUNTS.items()},
        "intermediate_size": settings["feed_forward_width"],
        "num_key_value_heads": settings["num_kv_heads"] or settings["num_heads"],
        "head_dim": settings["head_width"] or settings["width"] // settings["num_heads"],
        "hidden_act": "silu",
        "initializer_range": settings["init_std"],
        "rms_norm_eps": settings["norm_eps"],
        "tie_word_embeddings": settings["tie_embeddings"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }
    return config | _write_rope(settings) | _write_windows(settings, model_type) | _write_experts(settings, model_type)


def _type_of(settings: Mapping[str, Any]) -> str:
    """Return the kind of Llama in transformers that computes a model.

    Heads divide the width in its Llama; its Mistral, else the same, does not ask for that.
    """
    experts, over = settings["experts"], settings["qk_norm_over"] if settings["qk_norm"] else None
    divides = settings["width"] % settings["num_heads"] == 0
    if experts is None:
        found = "qwen3" if over else "mistral" if settings["window_tokens"] or not divides else "llama"
    else:
        found = {None: "mixtral", "width": "olmoe", "head": "qwen3_moe"}[over]
    is_own_width = settings["head_width"] in (None, settings["width"] // settings["num_heads"])
    for is_wrong, name, nearest in (
        (experts is None and over == "width", "qk_norm_over", "head"),
        (
            found == "mixtral" and not (experts or {}).get("normalize_weights", True),
            "experts.normalize_weights",
            "true",
        ),
        (settings["window_pattern"] and found != "qwen3", "window_pattern", "null"),
        (settings["window_tokens"] and found in ("olmoe", "qwen3_moe"), "window_tokens", "null"),
        (found == "olmoe" and not is_own_width, "head_width", "null"),
    ):
        if is_wrong:
            part, _, inner = name.partition(".")
            value = settings[part][inner] if inner else settings[part]
            raise NoClass(
                f"model.{name}={_word(value)}: not supported by any class of transformers with the other settings; "
                f"use model.{name}={nearest}."
            )
    return found


def _write_rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return rotary settings in both styles: `rope_parameters` (release 5), `rope_theta` with `rope_scaling` (4)."""
    theta, scaling = settings["rope_base"], settings["rope_scaling"]
    if scaling is None:
        kind, old = {"rope_type": "default"}, None
    elif "original_context_tokens" in scaling:
        kind = old = {"rope_type": "llama3", **{theirs: scaling[ours] for ours, theirs in LLAMA_SCALING.items()}}
    else:
        kind = {"rope_type": "linear", "factor": scaling["factor"]}
        old = {"type": "linear", **kind}
    return {"rope_parameters": {"rope_theta": theta, **kind}, "rope_theta": theta, "rope_scaling": old}


def _write_windows(settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    window = settings["window_tokens"]
    if model_type != "qwen3":
        return {"sliding_window": window} if model_type in ("mistral", "mixtral") else {}
    windows = layer_windows(settings["num_layers"], window_tokens=window, pattern=settings["window_pattern"])
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": sum(width is None for width in windows),
        "layer_types": ["full_attention" if width is None else "sliding_attention" for width in windows],
    }


def _write_experts(settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    experts = settings["experts"]
    if experts is None:
        return {}
    config = {
        "num_local_experts" if model_type == "mixtral" else "num_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_token"],
        "router_aux_loss_coef": experts["load_balance_weight"],
        "output_router_logits": False,
    }
    if model_type != "mixtral":
        config["norm_topk_prob"] = experts["normalize_weights"]
    if model_type == "qwen3_moe":
        width = settings["feed_forward_width"]
        config |= {"moe_intermediate_size": width, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return config


@dataclass
class ForeignConfig:
    """A config.json that notes which keys were requested."""

    content: Mapping[str, Any]
    asked: set[str] = field(default_factory=set[str])

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of these keys present."""
        self.asked.update(names)
        return next((self.content[name] for name in names if self.content.get(name) is not None), default)

    def count(self, *names: str) -> int:
        """Return the first of these keys present, a whole number; raises DataError for another value or none."""
        value = self.get(*names)
        if not isinstance(value, int) or isinstance(value, bool):
            raise DataError(f"config.json: {' or '.join(names)} must be a whole number, got {value!r}.")
        return value

    def one_of(self, name: str, value: Any, known: Mapping[str, Any]) -> Any:
        """Return what a value stands for; raises DataError for an unknown one."""
        if value not in known:
            raise DataError(f"config.json: {name}={value} is not supported; supported: {', '.join(known)}.")
        return known[value]

    def unread(self) -> list[str]:
        """Return the unread keys of possible importance."""
        return sorted(set(self.content) - self.asked - KEYS_WITHOUT_EFFECT - set(ONLY))


@dataclass(frozen=True)
class ModelDescription:
    """A model as config.json describes it: the family's name there, our settings, and the unknown keys."""

    model_type: str
    settings: dict[str, Any]
    unread_keys: tuple[str, ...]


def read_config(content: Mapping[str, Any]) -> ModelDescription:
    """Return the settings of a config.json.

    Raises:
        DataError: An unsupported architecture or feature, or a missing key.
    """
    if content.get("model_type") == OWN_TYPE:
        return ModelDescription(OWN_TYPE, own_settings(content), ())
    model_type = _read_type(ForeignConfig(content))
    config = ForeignConfig({**DEFAULTS[model_type], **content})
    for name, only in ONLY.items():
        value = content.get(name)
        if value is not None and value != only:
            raise DataError(f"config.json: {name}={value} is not supported; only {only} is.")
    settings = _read_gpt2(config) if model_type == "gpt2" else _read_llama(config, model_type)
    return ModelDescription(model_type, settings, tuple(config.unread()))


def _read_type(config: ForeignConfig) -> str:
    named, stated = config.get("architectures", default=[None])[0], config.get("model_type")
    by_architecture = {architecture: name for name, architecture in ARCHITECTURES.items()}
    found = by_architecture.get(str(named)) if named else stated
    if found not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES.values())
        raise DataError(f"config.json: architecture {named or stated} is not supported; supported: {known}.")
    if stated not in (None, found):
        raise DataError(f"config.json: architectures={named} does not match model_type={stated}.")
    return found


def _read_gpt2(config: ForeignConfig) -> dict[str, Any]:
    if not config.get("tie_word_embeddings", default=True):
        raise DataError("config.json: tie_word_embeddings=false is not supported for GPT-2.")
    known = {name: approximate for approximate, name in ACTIVATION_FUNCTIONS.items()} | {"gelu_pytorch_tanh": "tanh"}
    activation = config.get("activation_function", default="gelu_new")
    return node_of(
        GPT2,
        **{ours: config.count(theirs) for ours, theirs in GPT2_COUNTS.items()},
        gelu_approximate=config.one_of("activation_function", activation, known),
        feed_forward_width=config.get("n_inner"),
        norm_eps=config.get("layer_norm_epsilon", default=1e-5),
    )


def _read_llama(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    counts = {ours: config.count(theirs) for ours, theirs in LLAMA_COUNTS.items()}
    dense_width = config.count("intermediate_size")
    return node_of(
        Llama,
        **counts,
        num_kv_heads=config.get("num_key_value_heads", default=counts["num_heads"]),
        head_width=config.get("head_dim"),
        feed_forward_width=config.count("moe_intermediate_size") if model_type == "qwen3_moe" else dense_width,
        **_read_rope(config, model_type),
        **_read_windows(config, model_type),
        norm_eps=config.get("rms_norm_eps"),
        tie_embeddings=config.get("tie_word_embeddings", default=False),
        qk_norm=model_type in ("qwen3", "qwen3_moe", "olmoe"),
        qk_norm_over="width" if model_type == "olmoe" else "head",
        experts=_read_experts(config, model_type),
    )


def _read_rope(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    """Read either style; both may be there where they agree."""
    new, theta, old = config.get("rope_parameters"), config.get("rope_theta"), config.get("rope_scaling")
    base = {"rope_theta": ROPE_BASES.get(model_type, 10_000.0)}
    styles = [{**base, **new}] if new else []
    if theta is not None or old or not new:
        styles.append({**base, **({} if theta is None else {"rope_theta": theta}), **(old or {})})
    first, *others = [_read_scaling(config, style) for style in styles]
    if others and others != [first]:
        raise DataError("config.json: rope_parameters must agree with rope_theta and rope_scaling; keep one of them.")
    return first


def _read_scaling(config: ForeignConfig, style: Mapping[str, Any]) -> dict[str, Any]:
    kind = style.get("rope_type", style.get("type", "default"))
    kinds = {
        "default": (None, {}),
        "llama3": (RopeScaling, LLAMA_SCALING),
        "linear": (LinearRopeScaling, {"factor": "factor"}),
    }
    scaling, keys = config.one_of("rope_type", kind, kinds)
    if style.get("partial_rotary_factor", 1.0) != 1.0:
        raise DataError("config.json: partial_rotary_factor must be 1.")
    if missing := [theirs for theirs in keys.values() if theirs not in style]:
        raise DataError(f"config.json: rope_type={kind} needs {missing[0]!r}.")
    numbers = {ours: float(style[theirs]) for ours, theirs in keys.items()}
    if "original_context_tokens" in numbers:
        numbers["original_context_tokens"] = int(numbers["original_context_tokens"])
    scaling_node = None if scaling is None else node_of(scaling, **numbers)
    return {"rope_base": float(style["rope_theta"]), "rope_scaling": scaling_node}


def _read_windows(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    window, layer_types = config.get("sliding_window"), config.get("layer_types", default=[])
    letters = {"full_attention": "L", "sliding_attention": "S"}
    pattern = "".join(config.one_of("layer_types", kind, letters) for kind in layer_types)
    num_layers = config.count("num_hidden_layers")
    if pattern and len(pattern) != num_layers:
        raise DataError(f"config.json: {len(pattern)} layer_types do not match num_hidden_layers={num_layers}.")
    uses, first = config.get("use_sliding_window", default=False), config.get("max_window_layers")
    is_off = model_type == "llama" or (model_type in ("qwen3", "qwen3_moe") and not uses)
    if not pattern:
        num_full = min(first, num_layers) if model_type == "qwen3" and first is not None else 0
        pattern = "L" * num_full + "S" * (num_layers - num_full)
    if window is None or is_off or "S" not in pattern:
        return {"window_tokens": None, "window_pattern": None}
    return {"window_tokens": window, "window_pattern": pattern if "L" in pattern else None}


def _read_experts(config: ForeignConfig, model_type: str) -> dict[str, Any] | None:
    if model_type not in ("mixtral", "olmoe", "qwen3_moe"):
        return None
    return node_of(
        Experts,
        num_experts=config.count("num_local_experts", "num_experts"),
        num_experts_per_token=config.count("num_experts_per_tok"),
        normalize_weights=model_type == "mixtral" or bool(config.get("norm_topk_prob", default=False)),
        load_balance_weight=config.get("router_aux_loss_coef", default=0.0),
    )


OWN_TYPE: Final = "lmtrain"
OWN_PREFIX: Final = "model."  # of the names of weights; below it they are ours
CODE: Final = Path(__file__).with_name("own_code") / "modeling_lmtrain.py"


def own_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a model's completed settings for the code that an export carries."""
    kept = {name: _plain(value) for name, value in settings.items() if name not in (TARGET, *WITHOUT_EFFECT)}
    return {
        "architectures": ["LmtrainForCausalLM"],
        "model_type": OWN_TYPE,
        "auto_map": {
            "AutoConfig": f"{CODE.stem}.LmtrainConfig",
            "AutoModelForCausalLM": f"{CODE.stem}.LmtrainForCausalLM",
        },
        "family": "llama",
        "settings": kept,
        **{theirs: settings[ours] for ours, theirs in LLAMA_COUNTS.items()},
        "initializer_range": settings["init_std"],
        "tie_word_embeddings": False,  # a tied head has no separate weight to tie
        "use_cache": False,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(held) for name, held in value.items() if name != TARGET}
    return list(value) if isinstance(value, list | tuple) else value


def own_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a config written by `own_config`.

    Raises:
        DataError: Another program wrote it, or it is damaged.
    """
    kept = config.get("settings")
    if config.get("family") != "llama" or not isinstance(kept, Mapping):
        raise DataError('config.json of model_type=lmtrain has no "family" and "settings"; export the model again.')
    settings = dict(kept)
    if scaling := settings.get("rope_scaling"):
        settings["rope_scaling"] = node_of(LinearRopeScaling if {*scaling} == {"factor"} else RopeScaling, **scaling)
    if experts := settings.get("experts"):
        settings["experts"] = node_of(Experts, **experts)
    return node_of(Llama, **settings)
