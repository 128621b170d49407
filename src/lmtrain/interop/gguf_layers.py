"""Layers that llama.cpp keeps in other shapes than transformers: latent attention, convolutions, states, sinks.

Each class of models has its settings, `{method of gguf.GGUFWriter: value}`, and what its tensors become.
H heads, R rank, E experts, F width of a feed-forward layer, D width.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lmtrain.interop.foreign_config import ForeignConfig
from lmtrain.interop.hf_config import read_width
from lmtrain.interop.hf_families import FAMILIES
from lmtrain.models.rope import yarn_scale

Config = Mapping[str, Any]
Array = NDArray[np.float32]
Tensors = Iterator[tuple[str, Array]]
LITE: Final = 27  # layers of DeepSeek-V2-Lite
FULL: Final = "full_attention"
EVERY: Final = 4  # layers of Qwen3-Next, the last of which has attention


def latent_settings(config: Config) -> dict[str, Any]:
    """Describe DeepSeek's attention as llama.cpp computes it: all heads read one key of R and the rotated numbers."""
    from gguf import ExpertGatingFuncType

    rotated, rank, scaling = config["qk_rope_head_dim"], config["kv_lora_rank"], config["rope_parameters"]
    has_bias, has_groups = config["model_type"] == "deepseek_v3", (config.get("n_group") or 1) > 1
    settings = {
        "add_head_count_kv": 1,
        "add_q_lora_rank": config["q_lora_rank"],
        "add_kv_lora_rank": rank,
        "add_key_length": rank + rotated,
        "add_value_length": rank,
        "add_key_length_mla": config["qk_nope_head_dim"] + rotated,
        "add_value_length_mla": config["v_head_dim"],
        "add_rope_dimension_count": rotated,
        "add_leading_dense_block_count": config["first_k_dense_replace"],
        "add_expert_count": config["n_routed_experts"],
        "add_expert_used_count": config["num_experts_per_tok"],
        "add_expert_shared_count": config["n_shared_experts"],
        "add_expert_feed_forward_length": config["moe_intermediate_size"],
        "add_expert_weights_scale": config["routed_scaling_factor"],
        "add_expert_weights_norm": has_bias and config["norm_topk_prob"],
        "add_expert_gating_func": ExpertGatingFuncType.SIGMOID if has_bias else ExpertGatingFuncType.SOFTMAX,
        "add_expert_group_count": config["n_group"] if has_bias and has_groups else None,
        "add_expert_group_used_count": config["topk_group"] if has_bias and has_groups else None,
    }
    if scaling["rope_type"] == "yarn":
        settings["add_rope_scaling_yarn_log_mul"] = 0.1 * scaling["mscale_all_dim"]
    return settings


def scaled_there(config: Config) -> Any:
    """Return rotations with the factor on them that llama.cpp takes with YaRN; DeepSeek's is one, on scores alone."""
    rope = config["rope_parameters"]
    if rope["rope_type"] != "yarn":
        return rope
    factor = scale = yarn_scale(rope["factor"])
    of_all = rope.get("mscale_all_dim")
    if of_all and rope.get("mscale"):
        factor = yarn_scale(rope["factor"], rope["mscale"]) / yarn_scale(rope["factor"], of_all)
    is_latent = "kv_lora_rank" in config
    there = 1.0 if is_latent else scale
    is_same = math.isclose(rope.get("attention_factor") or factor, there) and bool(of_all) == is_latent
    return rope if is_same else {**rope, "attention_factor": there}


def query_rank(config: Config) -> int | None:
    """Return the rank of queries, which llama.cpp knows to be absent by V2-Lite's number of layers alone."""
    rank: int | None = config["q_lora_rank"]
    return rank if rank or config["num_hidden_layers"] == LITE else config["kv_lora_rank"]


def latent_tensors(name: str, values: Array, config: Config) -> Tensors:
    """Part the projection [H (K + V), R] out of the latent vector into keys', transposed, and values': [H, R, K]."""
    if name.endswith("kv_b_proj.weight"):
        heads = values.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
        keys, rest = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
        yield name.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(keys.swapaxes(1, 2))
        yield name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(rest)
    else:
        yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values


def sink_tensors(name: str, values: Array, config: Config) -> Tensors:
    """Part gate and up, which alternate in [E, D, 2 F], and transpose the experts' matrices."""
    del config
    if "experts.down_proj" in name or "experts.gate_up_proj" in name:
        place = name.removesuffix("_bias")
        end = ".bias" if place != name else ".weight"
        values = values if place != name else values.swapaxes(1, 2)
        parts = {"": values} if "down" in name else {"gate": values[:, ::2], "up": values[:, 1::2]}
        for part, own in parts.items():
            yield (place.replace("gate_up", part) if part else place) + end, np.ascontiguousarray(own)
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, values


def convolution_settings(config: Config) -> dict[str, Any]:
    """Give LFM2's layers of a short convolution no key heads."""
    return {
        "add_feed_forward_length": read_width(ForeignConfig(config), FAMILIES["lfm2"]),
        "add_head_count_kv": _of_attention(config["layer_types"], config["num_key_value_heads"]),
        "add_shortconv_l_cache": config["conv_L_cache"],
        "add_layer_norm_rms_eps": config["norm_eps"],
    }


def _of_attention(kinds: list[str], value: int, word: str = FULL) -> list[int]:
    return [value if kind == word else 0 for kind in kinds]


def delta_settings(config: Config) -> dict[str, Any]:
    """Describe Qwen3-Next's gated delta nets by the words for state spaces."""
    return {
        "add_ssm_conv_kernel": config["linear_conv_kernel_dim"],
        "add_ssm_state_size": config["linear_key_head_dim"],
        "add_ssm_group_count": config["linear_num_key_heads"],
        "add_ssm_time_step_rank": config["linear_num_value_heads"],
        "add_ssm_inner_size": config["linear_value_head_dim"] * config["linear_num_value_heads"],
        "add_full_attention_interval": EVERY,
    }


def layer_kinds(config: Config, word: str, *, every: int = EVERY) -> list[str]:
    """Return the kinds of layers: attention over all tokens every so many, the others by their word."""
    layers = range(1, config["num_hidden_layers"] + 1)
    return [word if layer % every else FULL for layer in layers]


def state_settings(config: Config) -> dict[str, Any]:
    """Describe Nemotron-H's layers, each of one kind."""
    kinds, num_heads = config["layers_block_type"], config["mamba_num_heads"]
    return {
        "add_block_count": len(kinds),
        "add_feed_forward_length": _of_attention(kinds, config["intermediate_size"], "mlp"),
        "add_head_count_kv": _of_attention(kinds, config["num_key_value_heads"]),
        "add_layer_norm_eps": config["layer_norm_epsilon"],
        "add_layer_norm_rms_eps": config["layer_norm_epsilon"],
        "add_ssm_conv_kernel": config["conv_kernel"],
        "add_ssm_state_size": config["ssm_state_size"],
        "add_ssm_group_count": config["n_groups"],
        "add_ssm_time_step_rank": num_heads,
        "add_ssm_inner_size": num_heads * config["mamba_head_dim"],
        "add_rope_dimension_count": config["head_dim"],
    }


def state_tensors(name: str, values: Array, config: Config) -> Tensors:
    """Give decays as they act, -exp(A_log), and convolutions and vectors of heads the shapes that llama.cpp reads."""
    if name.endswith(("conv1d.weight", "conv.conv.weight")):
        yield name, values.squeeze(1)
    elif name.endswith("A_log"):
        yield name, -np.exp(values) if "linear_attn" in name else -np.exp(values)[:, None]
    elif name.endswith("mixer.D"):
        yield name, values[:, None]
    elif name.endswith("mixer.norm.weight"):
        yield name, values.reshape(config["n_groups"], -1)
    else:
        yield name.replace("dt_bias", "dt_proj.bias"), values
