"""Tensor parallelism for the models of this package (GPT-2, Llama and its relatives), and their sharded loss.

Between the layers' norms and projections tokens are whole and features cut; elsewhere in the layers each rank has a
slice of the sequence; before and after them all ranks have everything.

The loss is over shards of the vocabulary (arXiv 1909.08053 section 3): each rank computes the logits of its rows, some
tokens at a time, and sends sums per token.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from lmtrain.errors import ConfigurationError
from lmtrain.losses.base import TokenLoss
from lmtrain.losses.chunked import VocabularyShard, chunked_total
from lmtrain.models.base import LanguageModel
from lmtrain.models.delta_net import GatedDeltaNet
from lmtrain.models.feed_forward import GELU, SquaredReLU, SwiGLU
from lmtrain.models.future_tokens import FutureToken, shifted
from lmtrain.models.gpt2 import GPT2, GPT2Block
from lmtrain.models.head import LossTotal, OutputHead
from lmtrain.models.latent_attention import LatentAttention
from lmtrain.models.llama import Llama, LlamaBlock
from lmtrain.models.mamba import Mamba2Layer
from lmtrain.models.mixers import Mixer, RecurrentLayer
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.self_attention import SelfAttention
from lmtrain.models.short_convolution import GatedConvolution
from lmtrain.parallel.group_sizes import OF_STATES, SHARED_WIDTH, require_parts
from lmtrain.parallel.tensor_layers import Regions, TensorLayout, share_smear


def require_cuts(model: nn.Module, *, num_ranks: int) -> None:
    """Refuse a model that cannot be cut over `num_ranks` ranks."""
    if not isinstance(model, GPT2 | Llama):
        raise ConfigurationError(
            f"{type(model).__name__} has no cuts for a tensor group, GPT2 and Llama have; use strategy=fsdp."
        )
    for layer in model.layers:
        block = _block_of(layer)
        sizes = {"vocab_size": model.vocab_size, **head_sizes(block), **widths_of(block.feed_forward)}
        require_parts(num_ranks, sizes)


def _block_of(layer: nn.Module) -> GPT2Block | LlamaBlock:
    """Return a layer, or the block of a module of future tokens."""
    block = layer.future_block if isinstance(layer, FutureToken) else layer
    assert isinstance(block, GPT2Block | LlamaBlock)
    return block


def widths_of(feed_forward: nn.Module | None) -> dict[str, int]:
    """Return the widths of a feed-forward layer, or of its experts, by the names of their settings."""
    if isinstance(feed_forward, MixtureOfExperts):
        shared = feed_forward.experts.shared_width
        return {"feed_forward_width": feed_forward.feed_forward_width} | ({SHARED_WIDTH: shared} if shared else {})
    if feed_forward is None:
        return {}
    assert isinstance(feed_forward, SwiGLU | SquaredReLU | GELU)
    return {"feed_forward_width": feed_forward.down.in_features}


def norms_all_heads(attention: nn.Module | None) -> bool:
    """Return whether a norm of queries and keys is over all heads."""
    return isinstance(attention, SelfAttention) and attention.qk_norm.over == "width"


def head_sizes(block: GPT2Block | LlamaBlock) -> dict[str, int]:
    """Return the heads of a layer, by the names of their settings."""
    if isinstance(block, GPT2Block):
        return {"num_heads": block.num_heads}
    attention = block.self_attention
    if isinstance(attention, LatentAttention):
        return {"num_heads": attention.num_heads}
    if isinstance(attention, GatedDeltaNet):
        return {OF_STATES[0]: attention.heads.num_key_heads}
    if isinstance(attention, Mamba2Layer):
        return {OF_STATES[1]: attention.heads.num_groups}
    if isinstance(attention, GatedConvolution):
        return {"width": attention.output.in_features}
    if attention is None:
        return {}
    return {"num_heads": attention.num_heads, "num_kv_heads": attention.num_kv_heads}


def cut_model(model: LanguageModel, regions: Regions) -> TensorLayout:
    """Cut a model's weights in place over a tensor group, and let its layers compute with their parts."""
    layout = TensorLayout(regions=regions)
    require_cuts(model, num_ranks=layout.num_ranks)
    if isinstance(model, GPT2):
        _cut_gpt2(model, layout)
    else:
        assert isinstance(model, Llama)
        _cut_llama(model, layout)
    _score_by_shards(model, layout)
    return layout


def _cut_gpt2(model: GPT2, layout: TensorLayout) -> None:
    layout.cut_vocabulary(model.token_embedding, "token_embedding")
    if model.head is not None:
        layout.cut_head(model.head, "head")
    for index, block in enumerate(model.layers):
        assert isinstance(block, GPT2Block)
        name = f"layers.{index}"
        layout.cut_rows(block.qkv, f"{name}.qkv", parts=block.fused_rows["qkv.weight"])
        layout.cut_columns(block.output, f"{name}.output")
        _cut_feed_forward(block.feed_forward, f"{name}.feed_forward", layout)
        block.num_heads //= layout.num_ranks
        _gather_after(layout, block.attention_norm, block.feed_forward_norm)
        layout.take_before(block)
    regions = layout.regions
    model.layers[0].register_forward_pre_hook(lambda _, inputs: (regions.slice(inputs[0]), *inputs[1:]))
    _end(model, layout, outside=("token_embedding", "position_embedding", "head"))


def _cut_llama(model: Llama, layout: TensorLayout) -> None:
    layout.cut_vocabulary(model.embedding.token, "embedding.token")
    if model.head is not None:
        layout.cut_head(model.head, "head")
    for name, table in model.value_embeddings.items():
        assert isinstance(table, nn.Embedding)
        layout.cut_features(table, f"value_embeddings.{name}")
    for index, layer in enumerate(model.layers):
        block, name = _block_of(layer), f"layers.{index}"
        assert isinstance(block, LlamaBlock)
        if isinstance(layer, FutureToken):
            name = f"{name}.future_block"
            _slice_future(layer, layout.regions)
        if block.self_attention is not None:
            _cut_attention(block.self_attention, f"{name}.self_attention", layout)
        if block.feed_forward is not None:
            _cut_feed_forward(block.feed_forward, f"{name}.feed_forward", layout)
        for branch in (block.self_attention, block.feed_forward):
            if branch is not None:
                branch.register_forward_pre_hook(lambda _, inputs: (layout.regions.gather(inputs[0]), *inputs[1:]))
        layout.take_before(layer)
    regions = layout.regions
    model.embedding.register_forward_hook(after(regions.slice))
    _end(model, layout, outside=("embedding", "value_embeddings", "head"))


def _slice_future(module: FutureToken, regions: Regions) -> None:
    """Let a module of future tokens compute with a slice of the tokens; its states for the head are whole."""

    def following(embedded: Tensor, num: int) -> Tensor:
        return regions.own_part(shifted(regions.gather(embedded), num))

    def slice_hidden(_: nn.Module, inputs: Any) -> Any:
        hidden, embedded, *others = inputs  # the last norm's are whole, those of a module before a slice
        return (hidden if hidden.shape == embedded.shape else regions.own_part(hidden), embedded, *others)

    def gather_scored(_: nn.Module, inputs: Any, made: Any) -> Any:
        del inputs
        hidden, scored, penalty = made
        return hidden, regions.gather(scored), penalty

    module.following = following
    module.register_forward_pre_hook(slice_hidden)
    module.register_forward_hook(gather_scored)


def _cut_attention(attention: Mixer, name: str, layout: TensorLayout) -> None:
    layout.cut_columns(attention.output, f"{name}.output")
    if isinstance(attention, LatentAttention):  # all ranks make the latent vectors of all tokens
        for part in ("query", "query_up", "latent_up"):
            linear: nn.Linear | None = getattr(attention, part)
            if linear is not None:
                layout.cut_rows(linear, f"{name}.{part}", parts=(linear.out_features,))
        attention.num_heads //= layout.num_ranks
        return
    if isinstance(attention, RecurrentLayer):
        _cut_recurrent(attention, name, layout)
        return
    layout.cut_rows(attention.qkv, f"{name}.qkv", parts=attention.fused_rows["qkv.weight"])
    if attention.value_gate is not None:
        layout.cut_rows(attention.value_gate, f"{name}.value_gate", parts=(attention.num_kv_heads,))
    if attention.key_smear is not None:
        share_smear(attention.key_smear, rank=layout.rank)
    for norm in (attention.q_norm, attention.k_norm):
        if norm is not None and norms_all_heads(attention):
            layout.share_norm(norm)
    divide_heads(attention, rank=layout.rank, num_ranks=layout.num_ranks)
    attention.fused_rows = {"qkv.weight": attention.widths}


def _cut_recurrent(layer: RecurrentLayer, name: str, layout: TensorLayout) -> None:
    """Share out the heads of states, or the channels of a convolution."""
    num_ranks = layout.num_ranks
    if isinstance(layer, GatedConvolution):
        width = layer.output.in_features * num_ranks
        layout.cut_rows(layer.inputs, f"{name}.inputs", parts=(width,) * 3)
        layout.share_vectors(layer, [(width,), (width,)])
        return
    keys, inner = layer.key_width, layer.inner_width
    if isinstance(layer, GatedDeltaNet):  # rows by key head
        layout.cut_rows(layer.inputs, f"{name}.inputs", parts=(layer.inputs.out_features,))
        layout.cut_rows(layer.rates, f"{name}.rates", parts=(layer.rates.out_features,))
        heads, num_heads = layer.heads, layer.heads.num_value_heads
        layout.share_vectors(layer, [(keys, keys, inner), (num_heads,), (num_heads,)])
        num_keys = heads.num_key_heads // num_ranks
        layer.heads = replace(heads, num_key_heads=num_keys, num_value_heads=num_heads // num_ranks)
    else:
        heads = layer.heads
        channels, each = (inner, keys, keys), (heads.num_heads,)
        layout.cut_rows(layer.inputs, f"{name}.inputs", parts=(inner, *channels, *each))
        layout.share_vectors(layer, [channels, channels, each, each, each, (inner,)])
        num_groups = heads.num_groups // num_ranks
        layer.heads = replace(heads, num_heads=heads.num_heads // num_ranks, num_groups=num_groups)
    layer.key_width, layer.inner_width = keys // num_ranks, inner // num_ranks


def divide_heads(attention: SelfAttention, *, rank: int, num_ranks: int) -> None:
    """Let attention count the heads of one rank, of those here."""
    attention.num_heads //= num_ranks
    attention.num_kv_heads //= num_ranks
    attention.first_head += rank * attention.num_heads
    queries, keys, values = attention.widths
    attention.widths = queries // num_ranks, keys // num_ranks, values // num_ranks


def _cut_feed_forward(feed_forward: nn.Module, name: str, layout: TensorLayout, *, adds_up: bool = True) -> None:
    if isinstance(feed_forward, MixtureOfExperts):
        layout.cut_experts(feed_forward, name)
        if feed_forward.shared is not None:
            _cut_feed_forward(feed_forward.shared, f"{name}.shared", layout, adds_up=False)
        return
    assert isinstance(feed_forward, SwiGLU | SquaredReLU | GELU)
    width = feed_forward.down.in_features
    if isinstance(feed_forward, SwiGLU):
        layout.cut_rows(feed_forward.gate_up, f"{name}.gate_up", parts=feed_forward.fused_rows["gate_up.weight"])
    else:
        layout.cut_rows(feed_forward.up, f"{name}.up", parts=(width,))
    layout.cut_columns(feed_forward.down, f"{name}.down", adds_up=adds_up)


def _gather_after(layout: TensorLayout, *norms: nn.Module | None) -> None:
    for norm in norms:
        assert norm is not None
        norm.register_forward_hook(after(layout.regions.gather))


def after(move: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return the hook to move a module's output."""
    return lambda module, inputs, output: move(output)


def _end(model: GPT2 | Llama, layout: TensorLayout, *, outside: tuple[str, ...]) -> None:
    """Gather after the last norm; uncut parameters from the first layer to it see a slice, or some heads, alone."""
    _gather_after(layout, model.final_norm)
    names = {name for name, _ in model.named_parameters()}
    layout.parts = {name for name in names - layout.cut if name.split(".")[0] not in outside}


def vocabulary_shard(first_row: int, group: ProcessGroup) -> VocabularyShard:
    """Return the rows of one rank of a group."""
    reduce = partial(dist.all_reduce, group=group)
    return VocabularyShard(first_row, take_largest=partial(reduce, op=dist.ReduceOp.MAX), add_up=reduce)


def _score_by_shards(model: LanguageModel, layout: TensorLayout) -> None:
    """Let the loss, and other users of logits, work on shards of the vocabulary."""
    shard = vocabulary_shard(layout.first_row(model.vocab_size), layout.mesh.get_group())

    def score(head: OutputHead, hidden: Tensor, targets: Tensor, loss: TokenLoss) -> LossTotal:
        weight: Any = head.weight
        own = OutputHead(weight.to_local(), head.soft_cap)
        return chunked_total(loss, own, hidden, targets, shard=shard)

    def logits(hidden: Tensor) -> Tensor:
        head = model.output_head()
        weight: Any = head.weight
        return OutputHead(weight.full_tensor(), head.soft_cap)(hidden)

    vars(model).update(score=score, logits=logits)
