"""The classes of transformers with our block: what each always computes, its keys, and the names of its tensors.

A further class is an entry here; what it always does and what its keys say are settings of `lmtrain.models.llama`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from lmtrain.interop.hf_experts import BIAS_AS_IT_IS, COUNT, ExpertFamily
from lmtrain.models.delta_net import GatedDelta
from lmtrain.models.mamba import Mamba2
from lmtrain.models.short_convolution import ShortConvolution

Settings = Mapping[str, Any]
GATED_ACTIVATIONS: Final = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key with the value of a setting: `read` makes ours of theirs and the settings read so far, `write` theirs."""

    name: str
    read: Callable[[Any, Settings], Any] = lambda theirs, _: theirs
    write: Callable[[Any, Settings], Any] = lambda ours, _: ours


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """Layers without attention: our settings of them, their keys and ours, and their word in `layer_types`.

    `layer_key` is the class's own name of that list; `names` are of tensors and modules in such a layer.
    """

    part: type
    keys: Mapping[str, str]
    word: str
    names: Mapping[str, str]
    layer_key: str = "layer_types"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A class of transformers.

    `defaults` are what it takes where config.json has no such key, beyond those in `all_defaults`. `always` and
    `derived` (from other settings) are our settings that no key changes; `keys` are settings beyond those of all
    classes, `biases` the places that a key of true or false gives biases. `has_local_base`: a key of release 4 is the
    base of windows; `scales_rope`: by default. `windows`: "all" layers or those from "max_window_layers" on, the
    "unrotated", or all but each such a layer; None has none. `window_rope_base` is a base for windows, `partial` a
    share that rotates, `recurrent` layers without attention, `latent` attention from latent vectors. `names` are of
    modules, where they differ from Llama's; a fused one stays so. `only` are keys with one supported value,
    `ignored` keys without effect, `writes` keys that the class checks all the same. One that `lists_layers` has
    other kinds of layers without a list.
    """

    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    always: Mapping[str, Any] = field(default_factory=dict[str, Any])
    derived: Mapping[str, Callable[[Settings], Any]] = field(default_factory=dict[str, Callable[[Settings], Any]])
    keys: Mapping[str, Key] = field(default_factory=dict[str, Key])
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    activation_key: str = "hidden_act"
    activations: Mapping[str, str] = field(default_factory=lambda: GATED_ACTIVATIONS)
    width_key: str = "intermediate_size"
    has_head_width: bool = True
    heads_divide_width: bool = False
    windows: Literal["all", "max_window_layers", "unrotated", "listed"] | int | None = None
    has_window_switch: bool = False
    rope_base: float = 10_000.0
    window_rope_base: float | None = None
    has_local_base: bool = False
    scales_rope: bool = False
    partial: bool = False
    latent: bool = False
    recurrent: Recurrence | None = None
    experts: ExpertFamily | None = None
    eps_key: str = "rms_norm_eps"
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    only: Mapping[str, Any] = field(default_factory=dict[str, Any])
    writes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lists_layers: bool = False
    ignored: Collection[str] = ()

    @property
    def all_defaults(self) -> dict[str, Any]:
        """Return `defaults` with those that most classes have."""
        return {"max_position_embeddings": 2048, self.eps_key: 1e-6, **self.defaults}

    @property
    def parts(self) -> tuple[bool, bool, type | None]:
        """Return whether it has experts and latent attention, and its kind of layers without attention."""
        return self.experts is not None, self.latent, None if self.recurrent is None else self.recurrent.part


def head_width(settings: Settings) -> int:
    """Return K of settings."""
    return settings["head_width"] or settings["width"] // settings["num_heads"]


def rotary_letters(flags: Collection[int], _: Settings) -> str | None:
    """Return a letter a layer, whether it rotates; None where all do."""
    return None if all(flags) else "".join("R" if flag else "N" for flag in flags)


def _flags(pattern: str | None, settings: Settings) -> list[int]:
    letters = pattern or "R"
    return [int(letters[layer % len(letters)] == "R") for layer in range(settings["num_layers"])]


ATTENTION_BIAS: Final = {"attention_bias": ("qkv", "output")}
LLAMA_BIASES: Final = {**ATTENTION_BIAS, "mlp_bias": ("feed_forward",)}
NORMS_AFTER: Final = {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
NORMS_AROUND: Final = {**NORMS_AFTER, "feed_forward_norm": "pre_feedforward_layernorm"}
GATE_UP_FUSED: Final = {"feed_forward.gate_up": "mlp.gate_up_proj"}
GRANITE_KEYS: Final = {
    "embedding_multiplier": Key(name="embedding_multiplier"),
    "residual_multiplier": Key(name="residual_multiplier"),
    "logit_multiplier": Key(name="logits_scaling", read=lambda it, _: 1 / it, write=lambda it, _: 1 / it),
    "attention_multiplier": Key(  # theirs in place of 1 / sqrt(K)
        name="attention_multiplier",
        read=lambda it, settings: it * head_width(settings) ** 0.5,
        write=lambda it, settings: it / head_width(settings) ** 0.5,
    ),
}
GRANITE_DEFAULTS: Final = dict.fromkeys((key.name for key in GRANITE_KEYS.values()), 1.0)
LATENT_DEFAULTS: Final = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
DEEPSEEK_ONLY: Final = {"attention_bias": False, "moe_layer_freq": 1}
DELTA: Final = Recurrence(
    part=GatedDelta,
    keys={
        "linear_num_key_heads": "num_key_heads",
        "linear_num_value_heads": "num_value_heads",
        "linear_key_head_dim": "key_width",
        "linear_value_head_dim": "value_width",
        "linear_conv_kernel_dim": "convolution_tokens",
    },
    word="linear_attention",
    names={
        "self_attention.inputs": "linear_attn.in_proj_qkvz",
        "self_attention.rates": "linear_attn.in_proj_ba",
        "self_attention.convolution": "linear_attn.conv1d.weight",
        "self_attention.decay_bias": "linear_attn.dt_bias",
        "self_attention.decay_log": "linear_attn.A_log",
        "self_attention.norm": "linear_attn.norm",
        "self_attention.output": "linear_attn.out_proj",
    },
)
CONVOLUTION: Final = Recurrence(
    part=ShortConvolution,
    keys={"conv_L_cache": "convolution_tokens", "conv_bias": "biases"},
    word="conv",
    names={
        "self_attention.inputs": "conv.in_proj",
        "self_attention.convolution": "conv.conv.weight",
        "self_attention.convolution_bias": "conv.conv.bias",
        "self_attention.output": "conv.out_proj",
    },
)
MAMBA: Final = Recurrence(
    part=Mamba2,
    keys={
        "mamba_num_heads": "num_heads",
        "mamba_head_dim": "head_width",
        "ssm_state_size": "state_width",
        "n_groups": "num_groups",
        "conv_kernel": "convolution_tokens",
        "use_conv_bias": "convolution_bias",
        "use_bias": "biases",
        "time_step_min": "least_step",
    },
    word="linear_attention",
    names={
        "self_attention.inputs": "mixer.in_proj",
        "self_attention.convolution": "mixer.conv1d.weight",
        "self_attention.convolution_bias": "mixer.conv1d.bias",
        "self_attention.step_bias": "mixer.dt_bias",
        "self_attention.decay_log": "mixer.A_log",
        "self_attention.skip": "mixer.D",
        "self_attention.norm": "mixer.norm",
        "self_attention.output": "mixer.out_proj",
    },
    layer_key="layers_block_type",
)
CHOSEN: Final = {"num_experts_per_token": "num_experts_per_tok"}
BALANCE: Final = {"load_balance_weight": "router_aux_loss_coef"}
NORMALIZED: Final = {"normalize_weights": "norm_topk_prob"}
QWEN_ROUTER: Final = {COUNT: "num_experts", **CHOSEN, **BALANCE, **NORMALIZED}
LOCAL_ROUTER: Final = {COUNT: "num_local_experts", **CHOSEN, **BALANCE}
DEEPSEEK_ROUTER: Final = {COUNT: "n_routed_experts", **CHOSEN, "weight_scale": "routed_scaling_factor"}
GROUPS: Final = {"num_groups": "n_group", "num_groups_per_token": "topk_group"}
QWEN_DEFAULTS: Final = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
QWEN_SHARED: Final = ExpertFamily(
    keys=QWEN_ROUTER,
    always={"shared_gate": True},
    dense="step",
    shared_key="shared_expert_intermediate_size",
    shared="mlp.shared_expert",
)
GEMMA_KEYS: Final = {
    "attention_multiplier": Key(
        name="query_pre_attn_scalar",
        read=lambda it, settings: (head_width(settings) / it) ** 0.5,
        write=lambda it, settings: round(head_width(settings) / it**2),
    )
}
GEMMA_ALWAYS: Final = {"norm_place": "both", "zero_centered_norms": True}
GEMMA_DEFAULTS: Final = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
GEMMA: Final = partial(
    Family,
    derived={"embedding_multiplier": lambda settings: settings["width"] ** 0.5},
    biases=ATTENTION_BIAS,
    activation_key="hidden_activation",
    heads_divide_width=True,
    names=NORMS_AROUND,
)
DEEPSEEK: Final = partial(
    Family,
    width_key="moe_intermediate_size",
    has_head_width=False,
    latent=True,
    ignored={"ep_size", "aux_loss_alpha", "seq_aux", "num_nextn_predict_layers", "num_mtp_layers", "qk_head_dim"}
    | {"num_key_value_heads"},
)

FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(architecture="LlamaForCausalLM", biases=LLAMA_BIASES, heads_divide_width=True),
    "mistral": Family(
        architecture="MistralForCausalLM",
        defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
        windows="all",
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        defaults={**QWEN_DEFAULTS, "head_dim": 128},
        always={"qk_norm": True},
        biases=ATTENTION_BIAS,
        windows="max_window_layers",
        has_window_switch=True,
    ),
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        defaults=QWEN_DEFAULTS,
        always={"biases": ["qkv"]},
        windows="max_window_layers",
        has_window_switch=True,
    ),
    "smollm3": Family(
        architecture="SmolLM3ForCausalLM",
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
        },
        keys={"rotary_pattern": Key(name="no_rope_layers", read=rotary_letters, write=_flags)},
        biases=LLAMA_BIASES,
        windows="unrotated",
        rope_base=2_000_000.0,
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        defaults={"rms_norm_eps": 1e-5},
        always={"norm_place": "after", "qk_norm": True, "qk_norm_over": "width"},
        biases=ATTENTION_BIAS,
        names=NORMS_AFTER,
    ),
    "olmo3": Family(
        architecture="Olmo3ForCausalLM",
        defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
        always={"norm_place": "after", "qk_norm": True, "qk_norm_over": "width"},
        biases=ATTENTION_BIAS,
        windows=4,
        rope_base=500_000.0,
        window_rope_base=500_000.0,
        names=NORMS_AFTER,
    ),
    "granite": Family(
        architecture="GraniteForCausalLM", defaults=GRANITE_DEFAULTS, keys=GRANITE_KEYS, biases=LLAMA_BIASES
    ),
    "granitemoehybrid": Family(
        architecture="GraniteMoeHybridForCausalLM",
        defaults={**GRANITE_DEFAULTS, "num_local_experts": 8, "shared_intermediate_size": 1024},
        keys={
            **GRANITE_KEYS,
            "rotary_pattern": Key(
                name="position_embedding_type",
                read=lambda it, _: None if it == "rope" else "N",
                write=lambda it, settings: "rope" if all(_flags(it, settings)) else None,
            ),
        },
        biases=ATTENTION_BIAS,
        width_key="shared_intermediate_size",
        names={"feed_forward.gate_up": "shared_mlp.input_linear", "feed_forward.down": "shared_mlp.output_linear"},
        only={"num_local_experts": 0},
        writes={"mamba_n_heads": 1},
        lists_layers=True,
        ignored={"intermediate_size", "num_experts_per_tok", "router_aux_loss_coef", "normalization_function"}
        | {f"mamba_{name}" for name in ("n_heads", "n_groups", "d_state", "d_head", "d_conv", "expand", "chunk_size")}
        | {"mamba_conv_bias", "mamba_proj_bias", "time_step_limit", "rope_parameters", "init_method"}
        | {"layers_block_type"},
    ),
    "gemma2": GEMMA(
        architecture="Gemma2ForCausalLM",
        defaults={
            **GEMMA_DEFAULTS,
            "max_position_embeddings": 8192,
            "final_logit_softcapping": 30.0,
            "attn_logit_softcapping": 50.0,
        },
        always=GEMMA_ALWAYS,
        keys={
            **GEMMA_KEYS,
            "logit_soft_cap": Key(name="final_logit_softcapping"),
            "attention_soft_cap": Key(name="attn_logit_softcapping"),
        },
        windows=2,
        ignored={"hidden_act"},
    ),
    "gemma3_text": GEMMA(
        architecture="Gemma3ForCausalLM",
        defaults={**GEMMA_DEFAULTS, "max_position_embeddings": 131_072},
        always={**GEMMA_ALWAYS, "qk_norm": True},
        keys={**GEMMA_KEYS, "logit_soft_cap": Key(name="final_logit_softcapping")},
        windows=6,
        rope_base=1_000_000.0,
        window_rope_base=10_000.0,
        has_local_base=True,
        only={"attn_logit_softcapping": None},
    ),
    "glm4": Family(
        architecture="Glm4ForCausalLM",
        defaults={
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1.5625e-07,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "attention_bias": True,
            "partial_rotary_factor": 0.5,
        },
        always={"norm_place": "both", "rotary_neighbours": True},
        biases={"attention_bias": ("qkv",)},
        partial=True,
        names={
            **GATE_UP_FUSED,
            "attention_output_norm": "post_self_attn_layernorm",
            "feed_forward_output_norm": "post_mlp_layernorm",
        },
    ),
    "phi3": Family(
        architecture="Phi3ForCausalLM",
        defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        windows="all",
        partial=True,
        names={**GATE_UP_FUSED, "self_attention.qkv": "self_attn.qkv_proj"},
    ),
    "mixtral": Family(
        architecture="MixtralForCausalLM",
        defaults={
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.001,
        },
        windows="all",
        rope_base=1_000_000.0,
        experts=ExpertFamily(
            keys=LOCAL_ROUTER,
            router="block_sparse_moe.gate",
            experts="block_sparse_moe.experts",
            matrices=("w1", "w3", "w2"),
        ),
    ),
    "olmoe": Family(
        architecture="OlmoeForCausalLM",
        defaults={
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "router_aux_loss_coef": 0.01,
        },
        always={"qk_norm": True, "qk_norm_over": "width"},
        has_head_width=False,
        biases=ATTENTION_BIAS,
        experts=ExpertFamily(keys=QWEN_ROUTER),
    ),
    "qwen3_moe": Family(
        architecture="Qwen3MoeForCausalLM",
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "router_aux_loss_coef": 0.001,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
        },
        always={"qk_norm": True},
        biases=ATTENTION_BIAS,
        width_key="moe_intermediate_size",
        windows="all",
        has_window_switch=True,
        ignored={"max_window_layers"},
        experts=ExpertFamily(keys=QWEN_ROUTER, dense="step"),
    ),
    "qwen2_moe": Family(
        architecture="Qwen2MoeForCausalLM",
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 16,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "router_aux_loss_coef": 0.001,
            "sliding_window": 4096,
            "qkv_bias": True,
        },
        biases={"qkv_bias": ("qkv",)},
        has_head_width=False,
        width_key="moe_intermediate_size",
        windows="listed",
        has_window_switch=True,
        ignored={"max_window_layers"},
        experts=QWEN_SHARED,
    ),
    "gpt_oss": Family(
        architecture="GptOssForCausalLM",
        defaults={
            "max_position_embeddings": 131_072,
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "attention_bias": True,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "router_aux_loss_coef": 0.001,
            "swiglu_limit": 7.0,
        },
        always={"attention_sinks": True},
        biases=ATTENTION_BIAS,
        windows=2,
        rope_base=150_000.0,
        scales_rope=True,
        only={"swiglu_alpha": 1.702},
        ignored={"initial_context_length", "experts_per_token"},
        experts=ExpertFamily(
            keys={**LOCAL_ROUTER, "gate_limit": "swiglu_limit"},
            always={"biases": True},
            router="mlp.router",
            stacked=("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
            mixed=True,
        ),
    ),
    "qwen3_next": Family(
        architecture="Qwen3NextForCausalLM",
        defaults={
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "intermediate_size": 5632,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "router_aux_loss_coef": 0.001,
            "norm_topk_prob": True,
        },
        always={"qk_norm": True, "zero_centered_norms": True, "attention_output_gate": True},
        biases=ATTENTION_BIAS,
        width_key="moe_intermediate_size",
        partial=True,
        recurrent=DELTA,
        experts=QWEN_SHARED,
    ),
    "lfm2": Family(
        architecture="Lfm2ForCausalLM",
        defaults={
            "max_position_embeddings": 128_000,
            "norm_eps": 1e-5,
            "intermediate_size": 12_288,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "block_auto_adjust_ff_dim": True,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
        },
        always={"qk_norm": True},
        has_head_width=False,
        rope_base=1_000_000.0,
        recurrent=CONVOLUTION,
        eps_key="norm_eps",
        names={
            "attention_norm": "operator_norm",
            "feed_forward_norm": "ffn_norm",
            "feed_forward.gate": "feed_forward.w1",
            "feed_forward.up": "feed_forward.w3",
            "feed_forward.down": "feed_forward.w2",
            "self_attention.output": "self_attn.out_proj",
            "self_attention.q_norm": "self_attn.q_layernorm",
            "self_attention.k_norm": "self_attn.k_layernorm",
            "final_norm": "model.embedding_norm",
        },
        only={"hidden_act": "silu"},
        writes={"block_auto_adjust_ff_dim": False},
        ignored={f"block_{name}" for name in ("dim", "mlp_init_scale", "norm_eps", "out_init_scale", "use_swiglu")}
        | {"block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc"}
        | {"theta"},
    ),
    "nemotron_h": Family(
        architecture="NemotronHForCausalLM",
        defaults={
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "intermediate_size": 21_504,
            "layer_norm_epsilon": 1e-5,
            "mlp_hidden_act": "relu2",
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
            "use_conv_bias": True,
            "use_bias": False,
            "time_step_min": 0.001,
        },
        always={"single_branch_layers": True, "rotary_pattern": "N"},
        biases={"mlp_bias": ("feed_forward",)},
        activation_key="mlp_hidden_act",
        activations={"relu2": "relu_squared"},
        recurrent=MAMBA,
        eps_key="layer_norm_epsilon",
        names={
            "embedding.token": "backbone.embeddings",
            "layers": "backbone.layers",
            "final_norm": "backbone.norm_f",
            "attention_norm": "norm",
            "feed_forward_norm": "norm",
            "self_attention": "mixer",
            "self_attention.output": "mixer.o_proj",
            "feed_forward.up": "mixer.up_proj",
            "feed_forward.down": "mixer.down_proj",
        },
        only={"attention_bias": False, "tie_word_embeddings": False, "mamba_hidden_act": "silu"},
        ignored={"attention_head_dim", "chunk_size", "expand", "hidden_dropout", "hybrid_override_pattern"}
        | {"mamba_proj_bias", "mamba_ssm_cache_dtype", "mtp_hybrid_override_pattern", "mtp_layers_block_type"}
        | {"n_group", "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "topk_group"}
        | {"num_logits_to_keep", "num_nextn_predict_layers", "rescale_prenorm_residual", "residual_in_fp32"}
        | {"rms_norm_eps", "routed_scaling_factor", "use_mamba_kernels"}
        | {f"time_step_{name}" for name in ("floor", "limit", "max", "rank")}
        | {f"moe_{name}" for name in ("intermediate_size", "latent_size", "shared_expert_intermediate_size")}
        | {"moe_shared_expert_overlap"},
    ),
    "deepseek_v2": DEEPSEEK(
        architecture="DeepseekV2ForCausalLM",
        defaults={
            "q_lora_rank": 1536,
            **LATENT_DEFAULTS,
            "intermediate_size": 11_008,
            "moe_intermediate_size": 1407,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.0,
            "first_k_dense_replace": 0,
            "topk_method": "greedy",
        },
        always={"rotary_neighbours": True},
        only={**DEEPSEEK_ONLY, "scoring_func": "softmax", "norm_topk_prob": False, "mlp_bias": False},
        experts=ExpertFamily(
            keys={**DEEPSEEK_ROUTER, **GROUPS},
            always={"normalize_weights": False},
            dense="first",
            shared_count="n_shared_experts",
            has_choice_key=True,
        ),
    ),
    "deepseek_v3": DEEPSEEK(
        architecture="DeepseekV3ForCausalLM",
        defaults={
            "max_position_embeddings": 4096,
            "q_lora_rank": 1536,
            **LATENT_DEFAULTS,
            "intermediate_size": 18_432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 3,
            "n_group": 8,
            "topk_group": 4,
            "norm_topk_prob": True,
            "rope_interleave": True,
        },
        keys={"rotary_neighbours": Key(name="rope_interleave")},
        only={**DEEPSEEK_ONLY, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        experts=ExpertFamily(
            keys={**DEEPSEEK_ROUTER, **GROUPS, **NORMALIZED},
            always={"scores": "sigmoid", "bias_step": BIAS_AS_IT_IS},
            dense="first",
            shared_count="n_shared_experts",
        ),
    ),
    "granitemoe": Family(
        architecture="GraniteMoeForCausalLM",
        defaults={
            **GRANITE_DEFAULTS,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.001,
        },
        keys=GRANITE_KEYS,
        biases=ATTENTION_BIAS,
        experts=ExpertFamily(
            keys=LOCAL_ROUTER,
            router="block_sparse_moe.router.layer",
            stacked=("block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"),
        ),
    ),
}
