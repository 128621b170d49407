"""A GGUF file for llama.cpp from an exported folder, by its own package `gguf` (the extra of this name).

https://github.com/ggml-org/llama.cpp/tree/master/gguf-py. H heads, K head width, D width, E experts.

Names and meanings of the settings: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import importlib.util
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from lmtrain.errors import ConfigurationError, EnvironmentProblem, suggest
from lmtrain.interop.gguf_tokenizer import add_tokenizer
from lmtrain.interop.hf_config import ACTIVATION_FUNCTIONS
from lmtrain.missing_package import install_command
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync, rename_durably

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

# llama.cpp's name of each of transformers' model types; those of `PERMUTED` rotate neighbouring pairs of a head.
ARCHITECTURES: Final = {
    "gpt2": "gpt2",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "olmoe": "olmoe",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
SCALINGS: Final = ("default", "linear", "llama3")
PERMUTED: Final = ("llama", "mistral", "mixtral")
NORMALIZES: Final = {"olmoe": False, "qwen3_moe": True}  # the weights of the chosen experts, whatever a config says
FREQUENCIES: Final = "rope_freqs.weight"


def require_computed_there(config: Mapping[str, Any]) -> None:
    """Refuse a model that llama.cpp refuses, or computes differently whatever its config says.

    Raises:
        ConfigurationError: The setting in the way.
    """
    kind = config["model_type"]
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    normalizes, kv_heads = config.get("norm_topk_prob"), config.get("num_key_value_heads")
    if kind not in ARCHITECTURES:
        raise ConfigurationError(
            f"{config['architectures'][0]} is not supported in GGUF; those that are: {', '.join(ARCHITECTURES)}. Use "
            "`lmtrain export hf`."
        )
    scaling = str(config.get("rope_parameters", {}).get("rope_type", "default"))
    biases = [name for name in ("attention_bias", "mlp_bias") if config.get(name)]
    for is_wrong, setting, does in (
        (bool(biases), f"model.biases ({' and '.join(biases)})", "has none in such a model"),
        (config.get("hidden_act", "silu") != "silu", "model.activation", "gates such a model by SiLU"),
        (scaling not in SCALINGS, f"model.rope_scaling ({scaling})", "is given other rotations here"),
        (
            config.get("activation_function") == ACTIVATION_FUNCTIONS["none"],
            "model.gelu_approximate=none",
            "computes GPT-2 with GELU by tanh",
        ),
        (window is not None, f"model.window_tokens={window}", "attends to all tokens in such a model"),
        (
            kind in NORMALIZES and normalizes is not NORMALIZES[kind],
            f"model.experts.normalize_weights={str(normalizes).lower()}",
            "weights the experts of such a model in another way",
        ),
        (
            kind == "olmoe" and kv_heads != config.get("num_attention_heads"),
            f"model.num_kv_heads={kv_heads}",
            "has as many keys as queries in such a model",
        ),
    ):
        if is_wrong:
            raise ConfigurationError(
                f"{setting}: not supported in GGUF, because llama.cpp {does}; use `lmtrain export hf`."
            )


def add_settings(writer: "GGUFWriter", config: Mapping[str, Any], *, name: str) -> None:
    """Write a model's name and dimensions."""
    from gguf import RopeScalingType

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
    width, rope = head_width(config), config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if (num_experts := config.get("num_local_experts", config.get("num_experts"))) is not None:
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


DTYPES: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
OUTPUT_TYPES: Final = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
AUTO: Final = "auto"  # as the weights are
BLOCK: Final = 32  # values of a row with one scale in q8_0
EXPERT: Final = re.compile(r"^(.*\.experts)\.(\d+)\.(.*)$")
TRANSPOSED: Final = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")  # GPT-2's, [inputs, outputs]

Array = NDArray[np.float32]


def require_gguf(output_type: str) -> None:
    """Refuse a machine without the package.

    Raises:
        EnvironmentProblem: It is not installed.
        ConfigurationError: The type is unknown.
    """
    if output_type not in (AUTO, *OUTPUT_TYPES):
        known = (AUTO, *OUTPUT_TYPES)
        near = suggest(output_type, known)
        raise ConfigurationError(f"--outtype: must be one of {', '.join(known)}, got {output_type}.{near}")
    if importlib.util.find_spec("gguf") is None:
        raise EnvironmentProblem(f"lmtrain export gguf needs the package gguf: {install_command('gguf')}")


def write_gguf(folder: Path, out: Path, *, output_type: str = AUTO, name: str) -> str | None:
    """Write an exported folder as one file, whole or absent; return a note where llama.cpp reads text otherwise.

    Raises:
        ConfigurationError: llama.cpp has no such tokenizer, or a tensor has no place there.
    """
    import gguf

    config: dict[str, Any] = foreign_json.read(folder / "config.json")
    aside = out.with_name(f".{out.name}.tmp")
    try:
        writer = gguf.GGUFWriter(aside, ARCHITECTURES[config["model_type"]], use_temp_file=True)
        with closing(writer):
            add_settings(writer, config, name=name)
            note = add_tokenizer(writer, folder, num_ids=config["vocab_size"])
            chosen = DTYPES[config["dtype"]] if output_type == AUTO else OUTPUT_TYPES[output_type]
            writer.add_file_type(gguf.LlamaFileType["ALL_F32" if chosen == "F32" else f"MOSTLY_{chosen}"])
            for tensor_name, values in named_tensors(folder, config):
                kind = kind_of(values, gguf.GGMLQuantizationType[chosen])
                writer.add_tensor(tensor_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        fsync(aside)
        rename_durably(aside, out)
    finally:
        aside.unlink(missing_ok=True)
    return note


def kind_of(values: Array, chosen: "GGMLQuantizationType") -> "GGMLQuantizationType":
    """Return a tensor's type: vectors stay fp32, and rows without whole blocks take fp16."""
    import gguf

    if values.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    if chosen == gguf.GGMLQuantizationType.Q8_0 and values.shape[-1] % BLOCK:
        return gguf.GGMLQuantizationType.F16
    return chosen


def named_tensors(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield every tensor of an exported folder by llama.cpp's name, one after the other, experts stacked: [E, ...].

    Raises: ConfigurationError for a tensor without a place there.
    """
    import gguf

    kind = config["model_type"]
    found = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}[ARCHITECTURES[kind]]
    names = gguf.get_tensor_name_map(found, config.get("num_hidden_layers") or config["n_layer"])
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, "pt")) for path in sorted(folder.glob("*.safetensors"))]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (no mapping)
        for merged, parts in _groups(list(places)).items():
            values = [_read(places[part], part, config) for part in parts]
            target = names.get_name(merged, try_suffixes=(".weight", ".bias"))
            if target is None:
                raise ConfigurationError(f"{merged} has no place in llama.cpp's {ARCHITECTURES[kind]}; export hf can.")
            yield target, values[0] if merged == parts[0] else np.stack(values)
    if (factors := rotation_factors(config)) is not None:
        yield FREQUENCIES, factors


def _groups(names: list[str]) -> dict[str, list[str]]:
    """Return names by the tensor they become: an expert's matrices together, in the experts' order."""
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        expert = EXPERT.match(name)
        merged = f"{expert[1]}.{expert[3]}" if expert else name
        groups[merged].append((int(expert[2]) if expert else 0, name))
    return {merged: [name for _, name in sorted(parts)] for merged, parts in groups.items()}


def _read(file: Any, name: str, config: Mapping[str, Any]) -> Array:
    values: Array = file.get_tensor(name).to(torch.float32).numpy()
    if config["model_type"] == "gpt2":
        return np.ascontiguousarray(values.T) if TRANSPOSED.search(name) else values
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    projection = name.removesuffix(".weight").rpartition(".")[2]
    if config["model_type"] in PERMUTED and projection in heads:
        return neighbouring_pairs(values, num_heads=config[heads[projection]])
    return values


def neighbouring_pairs(values: Array, *, num_heads: int) -> Array:
    """Put the halves of each head, which rotate together, side by side: [H * K, D] -> [H * K, D]."""
    halves = values.reshape(num_heads, 2, -1, values.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
