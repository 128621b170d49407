"""A GGUF file for llama.cpp from an exported folder, by its own package `gguf` (the extra of this name).

https://github.com/ggml-org/llama.cpp/tree/master/gguf-py. H heads, K head width, D width, E experts.

Names and meanings of the settings: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.interop import gguf_layers as layers
from lmtrain.interop.gguf_layers import Array, Config
from lmtrain.interop.gguf_tokenizer import add_tokenizer
from lmtrain.interop.hf_config import ACTIVATION_FUNCTIONS
from lmtrain.missing_package import require_package
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync, rename_durably

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What llama.cpp computes for a model type of transformers.

    `permuted` rotates neighbouring pairs of a head, where the weights are for halves. `norms_from_one` takes norms'
    weights as they are, where the files have what is above 1. `only` are keys of config.json with the one value
    computed there, `scales` the keys that are written along. Of `scalings`, llama3 has a tensor of factors that divide
    frequencies, and the others have settings. `settings` and `tensors` are of layers in other shapes.
    """

    name: str
    permuted: bool = False
    norms_from_one: bool = False
    activation: str = "silu"
    biases: tuple[str, ...] = ()
    windows: int | None = None  # every so many layers one without, of a window
    only: Mapping[str, Callable[[Config], Any]] = field(default_factory=dict[str, Callable[[Config], Any]])
    scales: Mapping[str, str] = field(default_factory=dict[str, str])
    scalings: tuple[str, ...] = ("default", "linear")
    settings: Callable[[Config], Mapping[str, Any]] = lambda config: {}
    tensors: Callable[[str, Array, Config], Iterator[tuple[str, Array]]] = lambda name, values, _: iter(
        [(name, values)]
    )


def head_width(config: Config) -> int:
    """Return the dimensions of one head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


SCALES: Final = {
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale",
    "logits_scaling": "add_logit_scale",
}
CAPS: Final = {
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
}
UNTIED: Final = {"tie_word_embeddings": lambda _: False}
NO_DENSE: Final = {"mlp_only_layers": lambda _: []}
GEMMA: Final = {"query_pre_attn_scalar": head_width, "tie_word_embeddings": lambda _: True}
YARN: Final = ("default", "yarn")
FACTORS: Final = ("default", "linear", "llama3")
NORMALIZED: Final = {"norm_topk_prob": lambda _: True}
AS_CHOSEN: Final = {"norm_topk_prob": lambda _: False}
LATENT: Final = {
    "rope_interleave": lambda _: True,
    "topk_method": lambda it: "greedy" if it["model_type"] == "deepseek_v2" else it["topk_method"],
    "rope_parameters": layers.scaled_there,
    "q_lora_rank": layers.query_rank,
}
DEEPSEEK: Final = Kind(
    name="deepseek2", only=LATENT, scalings=YARN, settings=layers.latent_settings, tensors=layers.latent_tensors
)
EVERY_FOURTH: Final = {"no_rope_layers": lambda it: [int(n % 4 != 0) for n in range(1, it["num_hidden_layers"] + 1)]}
KINDS: Final = {
    "gpt2": Kind(name="gpt2"),
    "llama": Kind(name="llama", permuted=True, scalings=FACTORS),
    "mistral": Kind(name="llama", permuted=True, scalings=FACTORS),
    "mixtral": Kind(name="llama", permuted=True, scalings=FACTORS),
    "olmoe": Kind(
        name="olmoe",
        only={**UNTIED, **AS_CHOSEN, "num_key_value_heads": lambda it: it["num_attention_heads"]},
    ),
    "qwen2": Kind(name="qwen2"),
    "qwen3": Kind(name="qwen3"),
    "qwen2_moe": Kind(name="qwen2moe", only={**UNTIED, **AS_CHOSEN, **NO_DENSE}),
    "qwen3_moe": Kind(name="qwen3moe", only={**NORMALIZED, **NO_DENSE}),
    "olmo2": Kind(name="olmo2", only=UNTIED),
    "smollm3": Kind(name="smollm3", permuted=True, only=EVERY_FOURTH),
    "granite": Kind(name="granite", permuted=True, scalings=FACTORS, scales=SCALES),
    "granitemoe": Kind(name="granitemoe", permuted=True, scales=SCALES),
    "gemma2": Kind(
        name="gemma2", norms_from_one=True, activation="gelu_pytorch_tanh", windows=2, only=GEMMA, scales=CAPS
    ),
    "gemma3_text": Kind(
        name="gemma3", norms_from_one=True, activation="gelu_pytorch_tanh", windows=6, only=GEMMA, scales=CAPS
    ),
    "glm4": Kind(name="glm4", biases=("attention_bias",)),
    "phi3": Kind(name="phi3"),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "gpt_oss": Kind(
        name="gpt-oss",
        windows=2,
        biases=("attention_bias",),
        only={"attention_bias": lambda _: True, "swiglu_limit": lambda _: 7.0, "rope_parameters": layers.scaled_there},
        scalings=YARN,
        settings=lambda it: {"add_expert_feed_forward_length": it["intermediate_size"]},
        tensors=layers.sink_tensors,
    ),
    "lfm2": Kind(
        name="lfm2",
        only={"conv_bias": lambda _: False},
        settings=layers.convolution_settings,
        tensors=layers.state_tensors,
    ),
    "qwen3_next": Kind(
        name="qwen3next",
        norms_from_one=True,
        only={
            **NORMALIZED,
            **NO_DENSE,
            "decoder_sparse_step": lambda _: 1,
            "layer_types": lambda it: layers.layer_kinds(it, "linear_attention"),
            "linear_value_head_dim": lambda it: it["linear_key_head_dim"],
        },
        settings=layers.delta_settings,
        tensors=layers.state_tensors,
    ),
    "nemotron_h": Kind(
        name="nemotron_h",
        biases=("mlp_bias",),
        only={"use_bias": lambda _: False},
        settings=layers.state_settings,
        tensors=layers.state_tensors,
    ),
}
FREQUENCIES: Final = "rope_freqs.weight"


def rotations(config: Config) -> tuple[Config, float | None]:
    """Return the rotations of layers that see all, and the base of those with a window where it is their own."""
    rope = config.get("rope_parameters", {})
    if "full_attention" not in rope:
        return rope, None
    return rope["full_attention"], float(rope["sliding_attention"]["rope_theta"])


def require_computed_there(config: Config) -> None:
    """Refuse a model that llama.cpp refuses, or computes differently whatever its config says."""
    kind = KINDS.get(config["model_type"])
    if kind is None:
        raise ConfigurationError(
            f"{config['architectures'][0]} is not supported in GGUF; those that are: {', '.join(KINDS)}. Use "
            "`lmtrain export hf`."
        )
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if kind.windows is not None and config.get("layer_types") == layers.layer_kinds(
        config, "sliding_attention", every=kind.windows
    ):
        window = None  # its own
    scaling = str(rotations(config)[0].get("rope_type", "default"))
    biases = [name for name in ("attention_bias", "mlp_bias") if config.get(name) and name not in kind.biases]
    activation = config.get("hidden_activation", config.get("hidden_act", kind.activation))
    for is_wrong, setting, does in (
        (bool(biases), f"model.biases ({' and '.join(biases)})", "has none in such a model"),
        (activation != kind.activation, f"model.activation ({activation})", f"gates such a model by {kind.activation}"),
        (scaling not in kind.scalings, f"model.rope_scaling ({scaling})", "is given other rotations here"),
        (
            config.get("activation_function") == ACTIVATION_FUNCTIONS["none"],
            "model.gelu_approximate=none",
            "computes GPT-2 with GELU by tanh",
        ),
        (window is not None, f"model.window_tokens={window}", "attends to all tokens in such a model"),
        *_other_values(config, kind),
    ):
        if is_wrong:
            raise ConfigurationError(
                f"{setting}: not supported in GGUF, because llama.cpp {does}; use `lmtrain export hf`."
            )


def _other_values(config: Config, kind: Kind) -> Iterator[tuple[bool, str, str]]:
    for key, value in kind.only.items():
        if key in config:
            yield (
                config[key] != value(config),
                f"{key}={str(config[key]).lower()}",
                f"has {str(value(config)).lower()} in such a model",
            )


def add_settings(writer: "GGUFWriter", config: Config, *, name: str) -> None:
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
    kind, width, (rope, window_base) = KINDS[config["model_type"]], head_width(config), rotations(config)
    settings: dict[str, Any] = {
        "add_context_length": config["max_position_embeddings"],
        "add_embedding_length": config["hidden_size"],
        "add_feed_forward_length": config["intermediate_size"],
        "add_block_count": config.get("num_hidden_layers"),
        "add_head_count": config["num_attention_heads"],
        "add_head_count_kv": config["num_key_value_heads"],
        "add_layer_norm_rms_eps": config.get("rms_norm_eps"),
        "add_rope_freq_base": rope.get("rope_theta"),
        "add_key_length": width,
        "add_value_length": width,
        "add_rope_dimension_count": int(width * rope.get("partial_rotary_factor", 1.0)),
        "add_sliding_window": None if kind.windows is None else config["sliding_window"],
        "add_rope_freq_base_swa": window_base,
        "add_rope_scaling_orig_ctx_len": {**config, **rope}.get("original_max_position_embeddings"),
        **{method: config.get(key) for key, method in kind.scales.items()},
    }
    if rope.get("rope_type") in (scalings := {"linear": RopeScalingType.LINEAR, "yarn": RopeScalingType.YARN}):
        settings["add_rope_scaling_type"] = scalings[rope["rope_type"]]
        settings["add_rope_scaling_factor"] = float(rope["factor"])
        settings["add_rope_scaling_yarn_beta_fast"] = rope.get("beta_fast")
        settings["add_rope_scaling_yarn_beta_slow"] = rope.get("beta_slow")
    for method, value in {**settings, **_experts(config), **kind.settings(config)}.items():
        if value is not None:
            getattr(writer, method)(value)


def _experts(config: Config) -> dict[str, Any]:
    num_experts = config.get("num_local_experts", config.get("num_experts"))
    if num_experts is None:
        return {}
    return {
        "add_expert_count": num_experts,
        "add_expert_used_count": config["num_experts_per_tok"],
        "add_expert_feed_forward_length": config.get("moe_intermediate_size"),
        "add_expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def rotation_factors(config: Config) -> NDArray[np.float32] | None:
    """Return Llama 3.1's divisor of each rotation's frequency: [K / 2]; None without such a stretch.

    arXiv:2407.21783 section 3.4.2: short waves are kept, long ones divided, and those between blended.
    """
    rope, _ = rotations(config)
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


def require_gguf(output_type: str) -> None:
    """Refuse a machine without the package, and an unknown type."""
    if output_type not in (AUTO, *OUTPUT_TYPES):
        known = (AUTO, *OUTPUT_TYPES)
        near = suggest(output_type, known)
        raise ConfigurationError(f"--outtype: must be one of {', '.join(known)}, got {output_type}.{near}")
    require_package("lmtrain export gguf", "gguf", extra="gguf")


def write_gguf(folder: Path, out: Path, *, output_type: str = AUTO, name: str) -> str | None:
    """Write an exported folder as one file, whole or absent; return a note where llama.cpp reads text otherwise.

    Raises:
        ConfigurationError: llama.cpp has no such tokenizer, or a tensor has no place there.
    """
    import gguf

    config: dict[str, Any] = foreign_json.read(folder / "config.json")
    aside = out.with_name(f".{out.name}.tmp")
    try:
        writer = gguf.GGUFWriter(aside, KINDS[config["model_type"]].name, use_temp_file=True)
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


def named_tensors(folder: Path, config: Config) -> Iterator[tuple[str, Array]]:
    """Yield every tensor of an exported folder by llama.cpp's name, one after the other, experts stacked: [E, ...].

    Raises: ConfigurationError for a tensor without a place there.
    """
    import gguf

    kind = KINDS[config["model_type"]]
    found = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}[kind.name]
    num_layers = config.get("num_hidden_layers") or config.get("n_layer") or len(config["layers_block_type"])
    names = gguf.get_tensor_name_map(found, num_layers)
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, "pt")) for path in sorted(folder.glob("*.safetensors"))]
        places = {name: file for file in files for name in file.keys()}  # noqa: SIM118 (no mapping)
        for merged, parts in _groups(list(places)).items():
            values = [_read(places[part], part, config) for part in parts]
            if merged.endswith("input_linear.weight"):  # gate and up of all experts
                place, _, _ = merged.rpartition("input_linear")
                for letters, half in zip(("w1", "w3"), np.split(values[0], 2, axis=1), strict=True):
                    yield f"{names.get_name(f'{place}experts.{letters}')}.weight", half
                continue
            whole = values[0] if merged == parts[0] else np.stack(values)
            for name, own in kind.tensors(merged, whole, config):
                target = names.get_name(name, try_suffixes=(".weight", ".bias"))
                if target is None:
                    raise ConfigurationError(f"{merged} has no place in llama.cpp's {kind.name}; export hf can.")
                yield target, own
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


def _read(file: Any, name: str, config: Config) -> Array:
    values: Array = file.get_tensor(name).to(torch.float32).numpy()
    if config["model_type"] == "gpt2":
        return np.ascontiguousarray(values.T) if TRANSPOSED.search(name) else values
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    projection = name.removesuffix(".weight").rpartition(".")[2]
    kind = KINDS[config["model_type"]]
    if kind.permuted and projection in heads:
        return neighbouring_pairs(values, num_heads=config[heads[projection]])
    from_one = kind.norms_from_one and projection.endswith("norm") and "linear_attn" not in name
    return values + 1 if from_one else values


def neighbouring_pairs(values: Array, *, num_heads: int) -> Array:
    """Put the halves of each head, which rotate together, side by side: [H * K, D] -> [H * K, D]."""
    halves = values.reshape(num_heads, 2, -1, values.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
