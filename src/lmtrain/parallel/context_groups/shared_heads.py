"""The models of this package over a context group: slices of the sequence everywhere, heads within attention.

Weights stay whole, their gradients are parts of a sum over the group. Tables are read at a rank's own tokens, but
where vectors are smeared over their neighbours.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError
from lmtrain.models.base import LanguageModel
from lmtrain.models.documents import Documents
from lmtrain.models.gpt2 import GPT2, GPT2Block
from lmtrain.models.head import OutputHead
from lmtrain.models.llama import Llama
from lmtrain.models.llama_block import LlamaBlock
from lmtrain.models.loss import Loss, LossTotal
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.self_attention import SelfAttention
from lmtrain.parallel import group_sizes
from lmtrain.parallel.context_groups.exchange import HeadExchange
from lmtrain.parallel.tensor_groups.cuts import after, divide_heads, head_sizes
from lmtrain.parallel.tensor_groups.layout import share_smear


def require_shares(model: nn.Module, *, num_ranks: int) -> None:
    """Refuse a model without a share of its heads for each of so many ranks.

    Raises:
        ConfigurationError: Its heads do not divide, or its layers are unknown here.
    """
    if not isinstance(model, GPT2 | Llama):
        raise ConfigurationError(
            f"{type(model).__name__} has no shares of heads for a context group, GPT2 and Llama have; use "
            "strategy=fsdp."
        )
    for block in model.layers:
        assert isinstance(block, GPT2Block | LlamaBlock)
        attention = block.self_attention if isinstance(block, LlamaBlock) else None
        group_sizes.require_shares(
            num_ranks,
            head_sizes(block),
            smears_keys=attention is not None and attention.key_smear is not None,
            norms_all_heads=attention is not None and attention.qk_norm.over == "width",
        )


def share_heads(model: LanguageModel, exchange: HeadExchange) -> None:
    """Let a model compute with a slice of the sequence, and within attention with a share of the heads.

    Raises:
        ConfigurationError: It cannot.
    """
    require_shares(model, num_ranks=exchange.num_ranks)
    if isinstance(model, GPT2):
        for block in model.layers:
            assert isinstance(block, GPT2Block)
            _share(block.qkv, block.output, block.fused_rows["qkv.weight"], exchange)
            block.num_heads //= exchange.num_ranks
        model.layers[0].register_forward_pre_hook(lambda _, inputs: (exchange.slice(inputs[0]), *inputs[1:]))
    else:
        assert isinstance(model, Llama)
        _share_llama(model, exchange)
    _end(model, exchange)


def _share_llama(model: Llama, exchange: HeadExchange) -> None:
    embedding = model.embedding
    if embedding.smear is not None:
        embedding.register_forward_hook(after(exchange.slice))
    else:
        for table in (embedding.token, embedding.bigram):
            if table is not None:
                table.register_forward_pre_hook(lambda _, inputs: (exchange.slice(inputs[0]),))
    for table in model.value_embeddings.values():
        assert isinstance(table, nn.Embedding)
        _share_table(table, exchange)
    for block in model.layers:
        assert isinstance(block, LlamaBlock)
        _share_attention(block.self_attention, exchange)
        if isinstance(block.feed_forward, MixtureOfExperts):
            block.feed_forward.average_shares = exchange.mean


def _share_attention(attention: SelfAttention, exchange: HeadExchange) -> None:
    if attention.qk_norm.over == "width":
        _normalise_slices(attention)
    _share(attention.qkv, attention.output, attention.widths, exchange)
    if attention.value_gate is not None:
        to_heads = partial(exchange.to_heads, parts=(attention.num_kv_heads,))
        attention.value_gate.register_forward_hook(after(to_heads))
    if attention.key_smear is not None:
        share_smear(attention.key_smear, rank=exchange.rank, num_ranks=exchange.num_ranks)
    divide_heads(attention, exchange.num_ranks)


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
        norm.forward = _as_it_is


def _share_table(table: nn.Embedding, exchange: HeadExchange) -> None:
    """Look up a rank's share of each token's values, for the whole sequence."""

    def forward(input: Int[Tensor, "B T"]) -> Tensor:  # noqa: A002  as torch calls it
        return F.embedding(input, table.weight.chunk(exchange.num_ranks, dim=1)[exchange.rank])

    table.forward = forward


def _end(model: LanguageModel, exchange: HeadExchange) -> None:
    """Let each rank score its own tokens, and all report the sums of the whole sequence."""
    features, score, logits = model.features, model.score, model.logits

    def of_slice(tokens: Tensor, documents: Documents | None = None) -> tuple[Tensor, Tensor | None]:
        hidden, penalty = features(tokens, documents)
        return hidden, None if penalty is None else exchange.total(penalty)[0]

    def of_whole(head: OutputHead, hidden: Tensor, targets: Tensor, loss: Loss) -> LossTotal:
        return LossTotal(*exchange.total(*score(head, hidden, exchange.slice(targets), loss)))

    def all_logits(hidden: Tensor) -> Tensor:
        return logits(exchange.gather(hidden))

    replaced: dict[str, Any] = {"features": of_slice, "score": of_whole, "logits": all_logits}
    for name, replacement in replaced.items():
        setattr(model, name, replacement)


def _as_it_is(x: Tensor) -> Tensor:
    return x
