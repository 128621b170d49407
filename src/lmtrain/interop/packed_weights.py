"""Weights stored in few bits, as published by gpt-oss (MXFP4) and DeepSeek (fp8 by blocks), unpacked while reading.

And those of a text model in the folder of one that reads images too (Gemma 3, Mistral 3).

MXFP4: Open Compute Project, Microscaling Formats 1.0: 32 numbers of 4 bits share one exponent of 8 bits. fp8 by blocks:
arXiv 2412.19437 section 3.3.2: each block of a matrix has a scale. G groups of 32 numbers, R rows, C columns.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from lmtrain.errors import DataError
from lmtrain.interop.safetensors_files import TensorFacts, WeightFiles

FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES: Final = (*FP4, *(-value for value in FP4))  # by their 4 bits
EXPONENT_BIAS: Final = 127
BLOCKS, SCALES = "_blocks", "_scales"
INVERSE: Final = "_scale_inv"  # after the name of a weight
FP8: Final = "F8_E4M3"
TEXT_MODEL: Final = re.compile(r"(model\.)?language_model\.")  # as published, and as release 5 names it in memory
HEAD: Final = "lm_head.weight"
UNPACKED: Final = "BF16"  # exact for MXFP4; for fp8 as transformers does


def unpack_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return bf16 [E, C, R] of bytes [E, R, G, 16], two numbers each, and exponents uint8 [E, R, G]; C = 32 G."""
    values = torch.tensor(FP4_VALUES, dtype=torch.bfloat16)
    pairs = torch.stack((values[(blocks & 0x0F).int()], values[(blocks >> 4).int()]), dim=-1)  # [E, R, G, 16, 2]
    numbers = torch.ldexp(pairs.flatten(-2), (scales.int() - EXPONENT_BIAS).unsqueeze(-1))  # [E, R, G, 32]
    return numbers.flatten(-2).mT


def unpack_fp8(weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    """Return bf16 [R, C] of fp8 [R, C] and the scale of each block, fp32 [R / block, C / block], rounded up."""
    rows, columns = weight.shape
    whole = scales.float().repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    return (weight.float() * whole).bfloat16()


class PackedFiles(WeightFiles):
    """The files of a folder as if every tensor in few bits were one of bf16, under its own name."""

    def __init__(self, files: WeightFiles, *, fp8_block: tuple[int, int]) -> None:
        self.folder, self._stored, self._fp8_block = files.folder, files.facts, fp8_block
        self.facts: dict[str, TensorFacts] = {}
        for name, facts in files.facts.items():
            if name.endswith(BLOCKS) and name.removesuffix(BLOCKS) + SCALES in files.facts:
                experts, rows, groups, half = facts.shape
                shape = (experts, groups * half * 2, rows)
                self.facts[name.removesuffix(BLOCKS)] = replace(facts, dtype=UNPACKED, shape=shape)
            elif facts.dtype == FP8 and name + INVERSE in files.facts:
                self.facts[name] = replace(facts, dtype=UNPACKED)
            elif not _is_scale(name, files.facts):
                self.facts[name] = facts

    @override
    def read(self, name: str) -> Tensor:
        if name not in self._stored:
            return unpack_mxfp4(self._stored[name + BLOCKS].read(), self._stored[name + SCALES].read())
        tensor = self._stored[name].read()
        is_packed = self._stored[name].dtype == FP8
        return unpack_fp8(tensor, self._stored[name + INVERSE].read(), self._fp8_block) if is_packed else tensor


def _is_scale(name: str, facts: Mapping[str, TensorFacts]) -> bool:
    return (name.endswith(INVERSE) and name.removesuffix(INVERSE) in facts) or (
        name.endswith(SCALES) and name.removesuffix(SCALES) + BLOCKS in facts
    )


def unpacked(files: WeightFiles, quantization: Mapping[str, Any] | None) -> WeightFiles:
    """Return the files with tensors in few bits unpacked, by config.json's `quantization_config`."""
    if quantization is None:
        return files
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method not in ("mxfp4", "fp8"):
        raise DataError(
            f"config.json: quantization_config.quant_method={method} is not supported; supported: mxfp4, fp8."
        )
    rows, columns = quantization.get("weight_block_size") or (128, 128)
    return PackedFiles(files, fp8_block=(int(rows), int(columns)))


def text_model(config: Mapping[str, Any], files: WeightFiles) -> tuple[Mapping[str, Any], WeightFiles]:
    """Return the config and the files of the text model alone, of a model that reads images too."""
    if "vision_config" not in config or not isinstance(config.get("text_config"), dict):
        return config, files
    renamed: dict[str, TensorFacts] = {}
    for name, facts in files.facts.items():
        if (found := TEXT_MODEL.match(name)) or name == HEAD:
            rest = name[found.end() :] if found else name
            renamed[rest if rest.startswith(("model.", HEAD)) else f"model.{rest}"] = facts
    text = config["text_config"]
    is_tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)) and HEAD not in renamed
    text = {**text, "tie_word_embeddings": is_tied, "final_logit_softcapping": None}  # the whole has no cap
    return text, WeightFiles(files.folder, renamed)
