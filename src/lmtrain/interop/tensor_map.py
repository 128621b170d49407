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
from lmtrain.interop.hf_experts import EXPERT_FAMILIES, Layout, Place, Region, expert_places
from lmtrain.interop.hf_families import FAMILIES
from lmtrain.models.base import LanguageModel
from lmtrain.models.delta_net import GatedDeltaNet
from lmtrain.models.future_tokens import FutureToken
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama, LlamaBlock
from lmtrain.models.mamba import Mamba2Layer
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.self_attention import SelfAttention
from lmtrain.models.short_convolution import GatedConvolution

DELTA_NET = {
    "self_attention.inputs.weight": "linear_attn.in_proj_qkvz.weight",
    "self_attention.rates.weight": "linear_attn.in_proj_ba.weight",
    "self_attention.convolution": "linear_attn.conv1d.weight",
    "self_attention.decay_bias": "linear_attn.dt_bias",
    "self_attention.decay_log": "linear_attn.A_log",
    "self_attention.norm.weight": "linear_attn.norm.weight",
    "self_attention.output.weight": "linear_attn.out_proj.weight",
}
CONVOLUTION = {
    **{f"self_attention.inputs.{kind}": f"conv.in_proj.{kind}" for kind in ("weight", "bias")},
    **{f"self_attention.output.{kind}": f"conv.out_proj.{kind}" for kind in ("weight", "bias")},
    "self_attention.convolution": "conv.conv.weight",
    "self_attention.convolution_bias": "conv.conv.bias",
}
MAMBA = {
    **{f"self_attention.inputs.{kind}": f"mixer.in_proj.{kind}" for kind in ("weight", "bias")},
    **{f"self_attention.output.{kind}": f"mixer.out_proj.{kind}" for kind in ("weight", "bias")},
    "self_attention.convolution": "mixer.conv1d.weight",
    "self_attention.convolution_bias": "mixer.conv1d.bias",
    "self_attention.step_bias": "mixer.dt_bias",
    "self_attention.decay_log": "mixer.A_log",
    "self_attention.skip": "mixer.D",
    "self_attention.norm.weight": "mixer.norm.weight",
}
RECURRENT: dict[type, dict[str, str]] = {GatedDeltaNet: DELTA_NET, GatedConvolution: CONVOLUTION, Mamba2Layer: MAMBA}
FEED_FORWARD = "feed_forward."
LLAMA_WHOLE = {
    "embedding.token.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
LLAMA_LAYER = {
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
    "feed_forward.down": "mlp.down_proj",
}
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
    """One tensor of theirs and its place in ours.

    `layout`: theirs is [inputs, outputs] ("transposed"), as in GPT-2; has the two halves of our rows side by side
    ("pairs"), as in gpt-oss; or both.
    """

    name: str
    region: Region
    layout: Layout = "same"

    def of(self, ours: Tensor) -> Tensor:
        """Return this part of our tensor, a view, as theirs; pairs as a dim of their own, the last one."""
        view = ours[self.region]
        if self.layout == "transposed":
            return view.mT
        if self.layout == "same":
            return view
        pairs = view.unflatten(1, (2, -1)).transpose(1, 2)  # [E, F, 2, ...]
        return pairs.permute(0, 3, 1, 2) if self.layout == "transposed_pairs" else pairs


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
        return [MappedTensor(name, tuple(it.shape), (Part(f"{OWN_PREFIX}{name}", ()),)) for name, it in weights.items()]
    mapped: list[MappedTensor] = []
    for name, tensor in weights.items():
        if isinstance(model, GPT2):
            parts = (Part(_gpt2_name(name), (), "transposed" if _is_projection(name) else "same"),)
        else:
            parts = tuple(starmap(Part, _llama_places(cast(Llama, model), name, tensor, model_type)))
        mapped.append(MappedTensor(name, tuple(tensor.shape), parts))
    return mapped


def _llama_places(model: Llama, name: str, tensor: Tensor, model_type: str) -> Iterator[Place]:
    if name in LLAMA_WHOLE:
        module, _, kind = name.rpartition(".")
        own = FAMILIES[model_type].names.get(module)
        yield (LLAMA_WHOLE[name] if own is None else f"{own}.{kind}"), (), "same"
        return
    _, layer, rest = name.split(".", 2)
    block = cast(LlamaBlock, model.layers[int(layer)])
    for theirs, region, layout in _layer_places(block, rest, tensor, model_type):
        yield f"{FAMILIES[model_type].names.get('layers', 'model.layers')}.{layer}.{theirs}", region, layout


def _layer_places(block: LlamaBlock, name: str, tensor: Tensor, model_type: str) -> Iterator[Place]:
    module, _, kind = name.rpartition(".")
    names = FAMILIES[model_type].names
    recurrent = RECURRENT.get(type(block.self_attention), {})
    if name in recurrent:
        yield recurrent[name], (), "same"
        return
    if module in names:
        yield f"{names[module]}.{kind}", (), "same"
    elif isinstance(block.feed_forward, MixtureOfExperts) and name.startswith(FEED_FORWARD):
        yield from expert_places(name.removeprefix(FEED_FORWARD), tensor, EXPERT_FAMILIES[model_type])
    elif module == "self_attention.qkv" and isinstance(block.self_attention, SelfAttention):
        start = 0
        for letter, width in zip("qkv", block.self_attention.widths, strict=True):
            yield (
                f"{names.get('self_attention', 'self_attn')}.{letter}_proj.{kind}",
                (slice(start, start + width),),
                "same",
            )
            start += width
    elif module == "feed_forward.gate_up":
        yield f"{names.get('feed_forward.gate', 'mlp.gate_proj')}.{kind}", (slice(0, tensor.shape[0] // 2),), "same"
        yield f"{names.get('feed_forward.up', 'mlp.up_proj')}.{kind}", (slice(tensor.shape[0] // 2, None),), "same"
    else:
        yield f"{LLAMA_LAYER[module]}.{kind}", (), "same"


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
