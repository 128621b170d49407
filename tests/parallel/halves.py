"""fp8 emulated in fp32; and one process whose products in fp8 are those of two ranks, each half scaled by itself."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.models.feed_forward import SwiGLU
from lmtrain.models.llama import LlamaBlock
from lmtrain.models.self_attention import SelfAttention
from lmtrain.precision.float8 import Gather, choose_layers, convert_layers


def in_fp8(model: LanguageModel, *, gather: Gather = "bf16") -> LanguageModel:
    """Multiply in fp8 by torchao, emulated."""
    chosen = choose_layers(model, min_width=16)
    return convert_layers(model, chosen, recipe="tensorwise", gather=gather, emulate=True)


def in_fp8_halves(model: LanguageModel) -> LanguageModel:
    """Multiply in fp8, each half of a layer's heads and features by itself."""
    in_fp8(model)
    for block in model.blocks:
        assert isinstance(block, LlamaBlock)
        attention, feed_forward = block.self_attention, block.feed_forward
        assert isinstance(attention, SelfAttention)
        assert isinstance(feed_forward, SwiGLU)
        attention.qkv.forward = _by_rows(attention.qkv, halves_of(attention.fused_rows["qkv.weight"]))
        rows = halves_of(feed_forward.fused_rows["gate_up.weight"])
        feed_forward.gate_up.forward = _by_rows(feed_forward.gate_up, rows)
        for layer in (attention.output, feed_forward.down):
            layer.forward = _by_columns(layer)
    return model


def halves_of(parts: Sequence[int]) -> list[Tensor]:
    """Return the rows of each of two ranks: its half of each of the fused parts."""
    rows = torch.arange(sum(parts)).split(list(parts))
    return [torch.cat([part.chunk(2)[rank] for part in rows]) for rank in range(2)]


def _by_rows(layer: Any, halves: list[Tensor]) -> Callable[[Tensor], Tensor]:
    back = torch.cat(halves).argsort()
    return lambda x: torch.cat([layer.product(x, layer.weight[rows], None) for rows in halves], dim=-1)[..., back]


def _by_columns(layer: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        (x_0, x_1), (weight_0, weight_1) = x.chunk(2, -1), layer.weight.chunk(2, 1)
        return layer.product(x_0, weight_0, None) + layer.product(x_1, weight_1, None)

    return forward
