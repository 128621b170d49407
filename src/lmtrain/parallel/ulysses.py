"""Context parallelism by all-to-all (DeepSpeed Ulysses, arXiv 2309.14509).

An all-to-all turns slices of all heads into the whole sequence of some heads for attention, and another one turns them
back; its gradient is the other one. The messages are torch's functional collectives, which the compiler takes into its
graphs.
B batch, T tokens, t tokens of a slice, H heads, h heads of a rank, R ranks, K head width, D width.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.models.gpt2 import GPT2, GPT2Block
from lmtrain.models.llama import Llama, LlamaBlock
from lmtrain.models.self_attention import SelfAttention
from lmtrain.parallel.gradients import local_part
from lmtrain.parallel.sequence_slices import SequenceSlices, score_slices, slice_embeddings, slice_first_input
from lmtrain.parallel.tensor_layers import OPERATORS, SEQUENCE, gathered, share_smear
from lmtrain.parallel.tensor_parallel import after, divide_heads

FEATURES: Final = 2  # the axis of heads


@final
class HeadExchange(SequenceSlices):
    """Slices, and the moves between them and heads; of a sequence that stays whole heads alone are shared out."""

    def to_heads(self, x: Float[Tensor, "B t E"], parts: Sequence[int]) -> Float[Tensor, "B T F"]:
        """Give each rank the whole sequence of its share of the features of each fused part."""
        if self.is_sliced:
            return _Exchange.apply(x, self.group.name, self.num_ranks, tuple(parts), True)  # noqa: FBT003
        return _by_ranks(x, parts, self.num_ranks)[self.rank]

    def to_slices(self, x: Float[Tensor, "B T F"]) -> Float[Tensor, "B t E"]:
        """Give each rank its slice of all features."""
        if self.is_sliced:
            whole = (x.shape[FEATURES] * self.num_ranks,)
            return _Exchange.apply(x, self.group.name, self.num_ranks, whole, False)  # noqa: FBT003
        assert not torch.is_grad_enabled(), "sequences of training are divided"
        return gathered(x.transpose(SEQUENCE, FEATURES), self.group).transpose(SEQUENCE, FEATURES)


class _Exchange(torch.autograd.Function):
    """The whole sequence of a rank's heads from slices of all, or back; a gradient goes the other way."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int, parts: tuple[int, ...], to_heads: bool) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks, ctx.parts, ctx.to_heads = group, num_ranks, parts, to_heads
        return (_heads_of_slices if to_heads else _slices_of_heads)(x, group, num_ranks, parts)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        back = _slices_of_heads if ctx.to_heads else _heads_of_slices
        return back(gradient, ctx.group, ctx.num_ranks, ctx.parts), None, None, None, None


def _heads_of_slices(
    x: Float[Tensor, "B t E"], group: str, num_ranks: int, parts: Sequence[int]
) -> Float[Tensor, "B T F"]:
    received = _exchanged(_by_ranks(x, parts, num_ranks), group)  # [R, B, t, F], by slices
    return received.transpose(0, SEQUENCE).flatten(SEQUENCE, 2)


def _slices_of_heads(
    x: Float[Tensor, "B T F"], group: str, num_ranks: int, parts: Sequence[int]
) -> Float[Tensor, "B t E"]:
    received = _exchanged(
        x.unflatten(SEQUENCE, (num_ranks, -1)).transpose(0, SEQUENCE), group
    )  # [R, B, t, F], by heads
    shares = received.movedim(0, FEATURES).split([part // num_ranks for part in parts], dim=-1)  # [B, t, R, e] each
    return torch.cat([share.flatten(FEATURES) for share in shares], dim=-1)


def _by_ranks(x: Float[Tensor, "B t E"], parts: Sequence[int], num_ranks: int) -> Float[Tensor, "R B t F"]:
    """Return the features of each rank's heads, its share of each part."""
    shares = [part.unflatten(-1, (num_ranks, -1)) for part in x.split(list(parts), dim=-1)]  # [B, t, R, e] each
    return torch.cat(shares, dim=-1).movedim(FEATURES, 0)


def _exchanged(x: Float[Tensor, "R B t F"], group: str) -> Float[Tensor, "R B t F"]:
    """Send each rank its row, and return the rows of all for this one."""
    ones = [1] * len(x)
    return OPERATORS.wait_tensor(OPERATORS.all_to_all_single(x.contiguous(), ones, ones, group))


def share_heads(model: GPT2 | Llama, exchange: HeadExchange) -> None:
    """Let a model compute with a slice of the sequence, and within attention with a share of the heads."""
    if isinstance(model, GPT2):
        for block in model.layers:
            assert isinstance(block, GPT2Block)
            _share(block.qkv, block.output, block.fused_rows["qkv.weight"], exchange)
            block.num_heads //= exchange.num_ranks
        slice_first_input(model, exchange)
    else:
        _share_llama(model, exchange)
    score_slices(model, exchange)


def _share_llama(model: Llama, exchange: HeadExchange) -> None:
    slice_embeddings(model, exchange)
    for table in model.value_embeddings.values():
        assert isinstance(table, nn.Embedding)
        _share_table(table, exchange)
    for block in model.layers:
        assert isinstance(block, LlamaBlock)
        assert isinstance(block.self_attention, SelfAttention)
        _share_attention(block.self_attention, exchange)


def _share_attention(attention: SelfAttention, exchange: HeadExchange) -> None:
    if attention.qk_norm.over == "width":
        _normalise_slices(attention)
    _share(attention.qkv, attention.output, attention.widths, exchange)
    if attention.value_gate is not None:
        to_heads = partial(exchange.to_heads, parts=(attention.num_kv_heads,))
        attention.value_gate.register_forward_hook(after(to_heads))
    divide_heads(attention, rank=exchange.rank, num_ranks=exchange.num_ranks)
    if attention.key_smear is not None:
        share_smear(attention.key_smear, rank=attention.first_head // attention.num_heads)


def _share(qkv: nn.Module, output: nn.Module, parts: Sequence[int], exchange: HeadExchange) -> None:
    """Put attention between the two moves."""
    qkv.register_forward_hook(after(partial(exchange.to_heads, parts=parts)))
    output.register_forward_pre_hook(lambda _, inputs: (exchange.to_slices(inputs[0]),))


def _normalise_slices(attention: SelfAttention) -> None:
    """Take the root mean square over all heads of a token where they still are on one rank."""
    q_norm, k_norm, widths = attention.q_norm, attention.k_norm, attention.widths
    assert q_norm is not None
    assert k_norm is not None
    normalise_q, normalise_k = q_norm.forward, k_norm.forward

    def normalised(fused: Tensor) -> Tensor:
        q, k, v = fused.split(widths, dim=-1)
        return torch.cat((normalise_q(q), normalise_k(k), v), dim=-1)

    attention.qkv.register_forward_hook(after(normalised))
    for norm in (q_norm, k_norm):
        norm.forward = lambda x: x


def _share_table(table: nn.Embedding, exchange: HeadExchange) -> None:
    """Look up a rank's share of each token's values, for the whole sequence; of the part of a tensor group's rank."""

    def forward(input: Int[Tensor, "B T"]) -> Tensor:  # noqa: A002  as torch calls it
        return F.embedding(input, local_part(table.weight).chunk(exchange.num_ranks, dim=1)[exchange.rank])

    table.forward = forward
