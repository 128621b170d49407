"""A model's settings from the `config.json` of transformers; unsupported features are refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lmtrain.errors import DataError
from lmtrain.interop.config_writer import ACTIVATION_FUNCTIONS, ARCHITECTURES, OWN_TYPE
from lmtrain.interop.model_settings import node_of
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.rope import LinearRopeScaling, RopeScaling

# Features of a config, and the only supported value of each.
ONLY: dict[str, Any] = {
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
GELU_APPROXIMATES = {name: approximate for approximate, name in ACTIVATION_FUNCTIONS.items()} | {
    "gelu_pytorch_tanh": "tanh"
}
LAYER_TYPES = ["full_attention", "sliding_attention"]
ROPE_TYPES = ("default", "llama3", "linear")
ROPE_BASES = {"mixtral": 1_000_000.0}  # without rope_theta; of the others 10,000
# What transformers' config classes take where config.json has no such key.
DEFAULTS: dict[str, dict[str, Any]] = {
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
# Keys without effect on the function that the weights compute.
WITHOUT_EFFECT = frozenset(
    {"_name_or_path", "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    | {"initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "pretraining_tp", "n_ctx"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "task_specific_params", "output_router_logits"}
    | {"reorder_and_upcast_attn", "attn_implementation", "_attn_implementation", "auto_map"}
    | {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}
    | {
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "is_decoder",
        "is_encoder_decoder",
        "cache_implementation",
    }
)


@dataclass
class ForeignConfig:
    """A config.json that notes which keys were requested."""

    content: Mapping[str, Any]
    asked: set[str] = field(default_factory=set[str])

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of these keys present."""
        self.asked.update(names)
        return next((self.content[name] for name in names if self.content.get(name) is not None), default)

    def need(self, *names: str) -> Any:
        """Return the first of these keys present.

        Raises:
            DataError: None is.
        """
        value = self.get(*names)
        if value is None:
            raise DataError(f"config.json: {' or '.join(names)} is missing.")
        return value

    def count(self, *names: str) -> int:
        """Return the first of these keys present, a whole number.

        Raises:
            DataError: None is, or it is something else.
        """
        value = self.need(*names)
        if not isinstance(value, int) or isinstance(value, bool):
            name = next(name for name in names if self.content.get(name) is not None)
            raise DataError(f"config.json: {name} must be a whole number, got {value!r}.")
        return value

    def unread(self) -> list[str]:
        """Return the unread keys of possible importance."""
        return sorted(set(self.content) - self.asked - WITHOUT_EFFECT - set(ONLY))


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
    model_type = _model_type(ForeignConfig(content))
    config = ForeignConfig({**DEFAULTS[model_type], **content})
    for name, only in ONLY.items():
        value = content.get(name)
        if value is not None and value != only:
            raise DataError(f"config.json: {name}={value} is not supported; only {only} is.")
    settings = _gpt2(config) if model_type == "gpt2" else _llama(config, model_type)
    return ModelDescription(model_type, settings, tuple(config.unread()))


def _model_type(config: ForeignConfig) -> str:
    named = str((config.get("architectures") or [""])[0])
    by_architecture = {architecture: name for name, architecture in ARCHITECTURES.items()}
    stated = str(config.get("model_type", default=""))
    model_type = by_architecture.get(named) or ("" if named else stated)
    if model_type not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES.values())
        raise DataError(f"config.json: architecture {named or stated or 'null'} is not supported; supported: {known}.")
    if stated and stated != model_type:
        raise DataError(f"config.json: architectures={named} does not match model_type={stated}.")
    return model_type


def _llama(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    num_heads = config.count("num_attention_heads")
    has_norm = model_type in ("qwen3", "qwen3_moe", "olmoe")
    dense_width = config.count("intermediate_size")
    return node_of(
        Llama,
        width=config.count("hidden_size"),
        num_layers=config.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads", default=num_heads),
        head_width=config.get("head_dim"),
        feed_forward_width=config.count("moe_intermediate_size") if model_type == "qwen3_moe" else dense_width,
        vocab_size=config.count("vocab_size"),
        max_context_tokens=config.count("max_position_embeddings"),
        **_rope(config, model_type),
        **_windows(config, model_type),
        norm_eps=config.need("rms_norm_eps"),
        tie_embeddings=config.get("tie_word_embeddings", default=False),
        qk_norm=has_norm,
        qk_norm_over="width" if model_type == "olmoe" else "head",
        experts=_experts(config, model_type),
    )


def _rope(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    new: dict[str, Any] = config.get("rope_parameters", default={})
    old: dict[str, Any] = config.get("rope_scaling", default={})
    scaling = new or old
    default = ROPE_BASES.get(model_type, 10_000.0)
    stated = (new.get("rope_theta"), old.get("rope_theta"), config.get("rope_theta"))
    bases = {float(base) for base in stated if base is not None}
    if old and old.get("rope_theta") is None and config.get("rope_theta") is None:
        bases.add(default)  # transformers then reads none of rope_parameters
    if len(bases) > 1:
        raise DataError(f"config.json: rope_theta must have one value, got {sorted(bases)}.")
    kind = _rope_type(scaling)
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise DataError(f"config.json: rope_type={kind} is not supported; supported: {known}.")
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise DataError("config.json: partial_rotary_factor must be 1.")
    found = _scaling(kind, scaling)
    if new and old and (_rope_type(old) != kind or _scaling(kind, old) != found):
        raise DataError("config.json: rope_parameters and rope_scaling differ; keep one of them.")
    return {"rope_base": bases.pop() if bases else default, "rope_scaling": found}


def _rope_type(scaling: Mapping[str, Any]) -> str:
    return scaling.get("rope_type", scaling.get("type", "default"))


def _scaling(kind: str, scaling: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        if kind == "linear":
            return node_of(LinearRopeScaling, factor=float(scaling["factor"]))
        if kind == "llama3":
            return node_of(
                RopeScaling,
                factor=float(scaling["factor"]),
                low_frequency_factor=float(scaling["low_freq_factor"]),
                high_frequency_factor=float(scaling["high_freq_factor"]),
                original_context_tokens=int(scaling["original_max_position_embeddings"]),
            )
    except KeyError as missing:
        raise DataError(f"config.json: rope_type={kind} needs {missing}.") from missing
    return None


def _windows(config: ForeignConfig, model_type: str) -> dict[str, Any]:
    window, layer_types = config.get("sliding_window"), config.get("layer_types", default=[])
    strange = sorted(set(layer_types) - set(LAYER_TYPES))
    if strange:
        raise DataError(f"config.json: layer_types={strange} are not supported; supported: {LAYER_TYPES}.")
    num_layers = config.count("num_hidden_layers")
    if layer_types and len(layer_types) != num_layers:
        raise DataError(f"config.json: {len(layer_types)} layer_types do not match num_hidden_layers={num_layers}.")
    uses, first = config.get("use_sliding_window", default=False), config.get("max_window_layers")
    if model_type in ("qwen3", "qwen3_moe") and not uses:
        window = None
    if window is None or model_type == "llama":
        return {"window_tokens": None, "window_pattern": None}
    if layer_types:
        pattern = "".join("S" if kind == "sliding_attention" else "L" for kind in layer_types)
    elif model_type == "qwen3" and first is not None:
        pattern = "L" * min(first, num_layers) + "S" * max(0, num_layers - first)
    else:
        pattern = "S"
    if not pattern.strip("S"):
        return {"window_tokens": window, "window_pattern": None}
    return {"window_tokens": window if "S" in pattern else None, "window_pattern": pattern if "S" in pattern else None}


def _experts(config: ForeignConfig, model_type: str) -> dict[str, Any] | None:
    if model_type not in ("mixtral", "olmoe", "qwen3_moe"):
        return None
    return node_of(
        Experts,
        num_experts=config.count("num_local_experts", "num_experts"),
        num_experts_per_token=config.count("num_experts_per_tok"),
        normalize_weights=model_type == "mixtral" or bool(config.get("norm_topk_prob", default=False)),
        load_balance_weight=config.get("router_aux_loss_coef", default=0.0),
    )


def _gpt2(config: ForeignConfig) -> dict[str, Any]:
    if not config.get("tie_word_embeddings", default=True):
        raise DataError("config.json: tie_word_embeddings=false is not supported for GPT-2.")
    activation = config.get("activation_function", default="gelu_new")
    if activation not in GELU_APPROXIMATES:
        known = ", ".join(GELU_APPROXIMATES)
        raise DataError(f"config.json: activation_function={activation} is not supported; supported: {known}.")
    return node_of(
        GPT2,
        gelu_approximate=GELU_APPROXIMATES[activation],
        width=config.count("n_embd"),
        num_layers=config.count("n_layer"),
        num_heads=config.count("n_head"),
        feed_forward_width=config.get("n_inner"),
        vocab_size=config.count("vocab_size"),
        max_context_tokens=config.count("n_positions"),
        norm_eps=config.get("layer_norm_epsilon", default=1e-5),
    )


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


def _own_scaling(settings: Mapping[str, Any]) -> type:
    return LinearRopeScaling if set(settings) == {"factor"} else RopeScaling


PARTS_OF: Final[dict[str, Callable[[Mapping[str, Any]], type]]] = {
    "rope_scaling": _own_scaling,
    "experts": lambda settings: Experts,
}
