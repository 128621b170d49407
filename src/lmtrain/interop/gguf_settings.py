"""The settings of a GGUF file for llama.cpp from transformers' config.json, and the models it computes otherwise.

Names and meanings as in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lmtrain.errors import ConfigurationError
from lmtrain.interop.config_writer import ACTIVATION_FUNCTIONS

if TYPE_CHECKING:
    from gguf import GGUFWriter

# llama.cpp's name of each of transformers' model types; those of `PERMUTED` rotate neighbouring pairs of a head.
ARCHITECTURES: Final = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
PERMUTED: Final = ("llama", "mistral", "mixtral")
NORMALIZES: Final = {"olmoe": False, "qwen3_moe": True}  # the weights of the chosen experts, whatever a config says
FREQUENCIES: Final = "rope_freqs.weight"


def require_computed_there(config: Mapping[str, Any]) -> None:
    """Refuse a model computed differently by llama.cpp, whatever its config says.

    Raises:
        ConfigurationError: GPT-2 with the exact GELU, a window, or experts weighted in another way.
    """
    kind, activation = config["model_type"], config.get("activation_function")
    if kind == "gpt2" and activation != ACTIVATION_FUNCTIONS["tanh"]:
        raise _otherwise(
            f"model.gelu_approximate=none (activation_function={activation})", "computes GPT-2 with GELU by tanh"
        )
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        raise _otherwise(f"model.window_tokens={config['sliding_window']}", "attends to all tokens in such a model")
    if kind in NORMALIZES and config.get("norm_topk_prob") is not NORMALIZES[kind]:
        does = "normalizes" if NORMALIZES[kind] else "does not normalize"
        set_to = str(config.get("norm_topk_prob")).lower()
        raise _otherwise(f"model.experts.normalize_weights={set_to}", f"{does} the experts' weights of such a model")


def _otherwise(told: str, does: str) -> ConfigurationError:
    return ConfigurationError(
        f"{told} cannot be a GGUF file: llama.cpp {does}, and would answer a little otherwise without a word. "
        "`lmtrain export hf` can."
    )


def add_settings(writer: "GGUFWriter", config: Mapping[str, Any], *, name: str) -> None:
    """Write a model's name and dimensions."""
    writer.add_name(name)
    writer.add_vocab_size(config["vocab_size"])
    if config["model_type"] == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(config["n_inner"] or 4 * config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(config["rope_parameters"]["rope_theta"]))
    width = head_width(config)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    if config["rope_parameters"]["rope_type"] == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(config["rope_parameters"]["factor"]))
    _add_experts(writer, config)


def _add_experts(writer: "GGUFWriter", config: Mapping[str, Any]) -> None:
    if (num_experts := config.get("num_local_experts", config.get("num_experts"))) is None:
        return
    writer.add_expert_count(num_experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def head_width(config: Mapping[str, Any]) -> int:
    """Return the dimensions of one head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rotation_factors(config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Return Llama 3.1's divisor of each rotation's frequency: [K / 2]; None without such a stretch.

    arXiv:2407.21783 section 3.4.2: short waves are kept, long ones divided, and those between blended.
    """
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") != "llama3":
        return None
    width, base = head_width(config), rope["rope_theta"]
    waves = 2 * math.pi * base ** (np.arange(0, width, 2) / width)
    context, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((context / waves - low) / (high - low), 0, 1)  # of the kept frequency
    return (1 / ((1 - share) / rope["factor"] + share)).astype(np.float32)
