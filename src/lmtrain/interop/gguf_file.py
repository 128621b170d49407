"""A GGUF file for llama.cpp from an exported folder, by its own package `gguf` (the extra of this name).

https://github.com/ggml-org/llama.cpp/tree/master/gguf-py. H heads, K head width, D width, E experts.
"""

import importlib.util
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

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.interop.gguf_settings import ARCHITECTURES, FREQUENCIES, PERMUTED, add_settings, rotation_factors
from lmtrain.interop.gguf_tokenizer import add_tokenizer
from lmtrain.missing_package import install_command
from lmtrain.storage import foreign_json
from lmtrain.storage.durable import fsync, rename_durably

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

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
        ConfigurationError: There is no such type.
    """
    if output_type not in (AUTO, *OUTPUT_TYPES):
        raise ConfigurationError(f"--outtype {output_type} is none of {', '.join((AUTO, *OUTPUT_TYPES))}.")
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
            chosen = OUTPUT_TYPES[_as_the_weights(config) if output_type == AUTO else output_type]
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


def _as_the_weights(config: Mapping[str, Any]) -> str:
    return {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[config["dtype"]]
