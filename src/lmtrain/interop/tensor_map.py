"""The tensors of transformers and ours, matched: one table, read in both directions.

Ours are fused (queries, keys and values; gate and up; all experts of a layer), theirs are one matrix each. A part gives
the region of a tensor of theirs in ours; copies are exact in both directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import cast

import torch
from torch import Tensor

from lmtrain.adapters.low_rank import is_of_adapter
from lmtrain.interop.hf_config import OWN_PREFIX, OWN_TYPE
from lmtrain.interop.hf_families import FAMILIES
from lmtrain.models.base import LanguageModel
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama, LlamaBlock

Region = tuple[slice | int, ...]

LLAMA_WHOLE = {
    "embedding.token.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
LLAMA_LAYER = {
    "attention_norm": "input_layernorm",
    "self_attention.output": "self_attn.o_proj",
    "self_attention.q_norm": "self_attn.q_norm",
    "self_attention.k_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.down": "mlp.down_proj",
}
# gate, up, down and router of experts
MIXTRAL_EXPERTS = ("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3", "block_sparse_moe.experts.{}.w2")
OTHER_EXPERTS = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj", "mlp.experts.{}.down_proj")
MIXTRAL_ROUTER, OTHER_ROUTER = "block_sparse_moe.gate.weight", "mlp.gate.weight"

GPT2_WHOLE = {
    "token_embedding.weight": "transformer.wte.weight",
    "position_embedding.weight": "transformer.wpe.weight",
    "final_norm.weight": "transformer.ln_f.weight",
    "final_norm.bias": "transformer.ln_f.bias",
}
GPT2_LAYER = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


@dataclass(frozen=True)
class Part:
    """One tensor of theirs and its place in ours; `is_transposed` where theirs is [inputs, outputs], as in GPT-2."""

    name: str
    region: Region
    is_transposed: bool = False

    def of(self, ours: Tensor) -> Tensor:
        """Return this part of our tensor, a view, as theirs."""
        view = ours[self.region]
        return view.mT if self.is_transposed else view


@dataclass(frozen=True)
class MappedTensor:
    """One of our tensors and its parts."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def part_shape(self, part: Part) -> tuple[int, ...]:
        """Return the shape expected of theirs."""
        return tuple(part.of(torch.empty(self.shape, device="meta")).shape)


def map_tensors(model: LanguageModel, model_type: str) -> list[MappedTensor]:
    """Map every tensor of a model, also on the meta device, to those of a `model_type` of transformers.

    Our own code has our tensors. Adapters are none of the model's.
    """
    weights = {name: tensor for name, tensor in model.state_dict().items() if not is_of_adapter(name)}
    if model_type == OWN_TYPE:
        return [MappedTensor(name, tuple(it.shape), (Part(f"{OWN_PREFIX}{name}", ()),)) for name, it in weights.items()]
    mapped: list[MappedTensor] = []
    for name, tensor in weights.items():
        if isinstance(model, GPT2):
            parts = (Part(_gpt2_name(name), (), is_transposed=_is_projection(name)),)
        else:
            parts = tuple(starmap(Part, _llama_places(cast(Llama, model), name, model_type)))
        mapped.append(MappedTensor(name, tuple(tensor.shape), parts))
    return mapped


def _llama_places(model: Llama, name: str, model_type: str) -> Iterator[tuple[str, Region]]:
    if name in LLAMA_WHOLE:
        yield LLAMA_WHOLE[name], ()
        return
    _, layer, rest = name.split(".", 2)
    block = cast(LlamaBlock, model.layers[int(layer)])
    yield from ((f"model.layers.{layer}.{theirs}", region) for theirs, region in _layer_places(block, rest, model_type))


def _layer_places(block: LlamaBlock, name: str, model_type: str) -> Iterator[tuple[str, Region]]:
    parameter, (module, _, kind) = block.get_parameter(name), name.rpartition(".")
    names = FAMILIES[model_type].names
    if module in names:
        yield f"{names[module]}.{kind}", ()
    elif module == "self_attention.qkv":
        start = 0
        for letter, width in zip("qkv", block.self_attention.widths, strict=True):
            yield f"self_attn.{letter}_proj.{kind}", (slice(start, start + width),)
            start += width
    elif module == "feed_forward.gate_up":
        yield f"mlp.gate_proj.{kind}", (slice(0, parameter.shape[0] // 2),)
        yield f"mlp.up_proj.{kind}", (slice(parameter.shape[0] // 2, None),)
    elif module == "feed_forward.router":
        yield (MIXTRAL_ROUTER if model_type == "mixtral" else OTHER_ROUTER), ()
    elif name in ("feed_forward.gate_up", "feed_forward.down"):
        yield from _expert_places(parameter, model_type, is_down=name.endswith("down"))
    else:
        yield f"{LLAMA_LAYER[module]}.{kind}", ()


def _expert_places(stack: Tensor, model_type: str, *, is_down: bool) -> Iterator[tuple[str, Region]]:
    gate, up, down = MIXTRAL_EXPERTS if model_type == "mixtral" else OTHER_EXPERTS
    half = stack.shape[1] // 2
    for expert in range(stack.shape[0]):
        if is_down:
            yield f"{down.format(expert)}.weight", (expert,)
        else:
            yield f"{gate.format(expert)}.weight", (expert, slice(0, half))
            yield f"{up.format(expert)}.weight", (expert, slice(half, None))


def _gpt2_name(name: str) -> str:
    if name in GPT2_WHOLE:
        return GPT2_WHOLE[name]
    _, layer, rest = name.split(".", 2)
    module, _, kind = rest.rpartition(".")
    return f"transformer.h.{layer}.{GPT2_LAYER[module]}.{kind}"


def _is_projection(name: str) -> bool:
    """Return whether GPT-2 of transformers keeps this weight as [inputs, outputs], its Conv1D."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and module.endswith(("qkv", "output", "feed_forward.up", "feed_forward.down"))
