"""The tensors of transformers and ours, matched: one table, read in both directions.

Ours are fused (queries, keys and values; gate and up; all experts of a layer), theirs are one matrix each. A part gives
the region of a tensor of theirs in ours; copies are exact in both directions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmtrain.adapters.low_rank import is_of_adapter
from lmtrain.interop.hf_config import OWN_PREFIX, OWN_TYPE
from lmtrain.interop.hf_experts import Part, expert_parts
from lmtrain.interop.hf_families import FAMILIES, Family
from lmtrain.models.base import LanguageModel
from lmtrain.models.future_tokens import FutureToken
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import LlamaBlock
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.self_attention import SelfAttention

FEED_FORWARD = "feed_forward."
LLAMA_NAMES = {  # of modules, those of a layer within it
    "embedding.token": "model.embed_tokens",
    "layers": "model.layers",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "self_attention": "self_attn",
    "self_attention.output": "self_attn.o_proj",
    "self_attention.query": "self_attn.q_proj",
    "self_attention.query_down": "self_attn.q_a_proj",
    "self_attention.query_norm": "self_attn.q_a_layernorm",
    "self_attention.query_up": "self_attn.q_b_proj",
    "self_attention.latent_down": "self_attn.kv_a_proj_with_mqa",
    "self_attention.latent_norm": "self_attn.kv_a_layernorm",
    "self_attention.latent_up": "self_attn.kv_b_proj",
    "self_attention.q_norm": "self_attn.q_norm",
    "self_attention.k_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
GPT2_NAMES = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "layers": "transformer.h",
    "final_norm": "transformer.ln_f",
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
TRANSPOSED = ("qkv.weight", "output.weight", "feed_forward.up.weight", "feed_forward.down.weight")  # GPT-2's Conv1D


@dataclass(frozen=True)
class MappedTensor:
    """One of our tensors and its parts."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def part_shape(self, part: Part) -> tuple[int, ...]:
        """Return the shape expected of theirs."""
        view = part.of(torch.empty(self.shape, device="meta"))
        return tuple((view.flatten(-2) if part.layout.endswith("pairs") else view).shape)


def map_tensors(model: LanguageModel, model_type: str) -> list[MappedTensor]:
    """Map every tensor of a model, also on the meta device, to those of a `model_type` of transformers.

    Our own code has our tensors. Adapters and modules of future tokens are not part of it.
    """
    future = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, FutureToken))
    weights = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not is_of_adapter(name) and not name.startswith(future)
    }
    if model_type == OWN_TYPE:
        return [MappedTensor(name, tuple(it.shape), (Part(f"{OWN_PREFIX}{name}"),)) for name, it in weights.items()]
    return [
        MappedTensor(name, tuple(tensor.shape), tuple(_parts(model, name, tensor, model_type)))
        for name, tensor in weights.items()
    ]


def _parts(model: LanguageModel, name: str, tensor: Tensor, model_type: str) -> Iterator[Part]:
    names = GPT2_NAMES if isinstance(model, GPT2) else {**LLAMA_NAMES, **FAMILIES[model_type].names}
    if not name.startswith("layers."):
        yield Part(_named(name, names))
        return
    _, layer, rest = name.split(".", 2)
    block = model.get_submodule(f"layers.{layer}")
    if isinstance(block, LlamaBlock):
        parts = _layer_parts(block, rest, tensor, FAMILIES[model_type], names)
    else:
        parts = iter([Part(_named(rest, names), layout="transposed" if rest.endswith(TRANSPOSED) else "same")])
    yield from (replace(part, name=f"{names['layers']}.{layer}.{part.name}") for part in parts)


def _named(name: str, names: Mapping[str, str]) -> str:
    """Return a tensor's name by its own entry, or by that of its module."""
    module, _, kind = name.rpartition(".")
    return names[name] if name in names else f"{names[module]}.{kind}"


def _layer_parts(
    block: LlamaBlock, name: str, tensor: Tensor, family: Family, names: Mapping[str, str]
) -> Iterator[Part]:
    module, _, kind = name.rpartition(".")
    if family.recurrent is not None and not isinstance(block.self_attention, SelfAttention):
        names = {**names, **family.recurrent.names}
    if (
        family.experts is not None
        and isinstance(block.feed_forward, MixtureOfExperts)
        and name.startswith(FEED_FORWARD)
    ):
        yield from expert_parts(name.removeprefix(FEED_FORWARD), tensor, family.experts)
    elif module == "self_attention.qkv" and module not in names and isinstance(block.self_attention, SelfAttention):
        start = 0
        for letter, width in zip("qkv", block.self_attention.widths, strict=True):
            yield Part(f"{names['self_attention']}.{letter}_proj.{kind}", (slice(start, start + width),))
            start += width
    elif module == "feed_forward.gate_up" and module not in names:
        half = tensor.shape[0] // 2
        yield Part(f"{names['feed_forward.gate']}.{kind}", (slice(0, half),))
        yield Part(f"{names['feed_forward.up']}.{kind}", (slice(half, None),))
    else:
        yield Part(_named(name, names))
