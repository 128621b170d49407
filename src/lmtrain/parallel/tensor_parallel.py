"""Tensor parallelism for the models of this package (GPT-2, Llama and its relatives), and their sharded loss.

Between the layers' norms and projections tokens are whole and features cut; elsewhere in the layers each rank has a
slice of the sequence; before and after them all ranks have everything.

The loss is over shards of the vocabulary (arXiv 1909.08053 section 3): each rank computes the logits of its rows and
sends sums per token. The gradient of a chunk's logits is taken at once, so that one chunk is in memory.
B batch, T tokens, N = B * T, C tokens of a chunk, D width, W rows of a shard.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from typing_extensions import override

from lmtrain.errors import ConfigurationError
from lmtrain.losses.base import TokenLoss
from lmtrain.losses.chunked import compute_dtype
from lmtrain.models.base import LanguageModel
from lmtrain.models.feed_forward import GELU, SquaredReLU, SwiGLU
from lmtrain.models.gpt2 import GPT2, GPT2Block
from lmtrain.models.head import LossTotal, OutputHead
from lmtrain.models.llama import Llama, LlamaBlock
from lmtrain.models.self_attention import SelfAttention
from lmtrain.parallel.group_sizes import require_parts
from lmtrain.parallel.tensor_layers import Regions, TensorLayout


class ShardRule(NamedTuple):
    """How tokens are scored: products in `dtype`, sums in fp32 or better; a shard's rows begin at `first_row`."""

    dtype: torch.dtype
    chunk_tokens: int
    z_loss_weight: float
    ignore_index: int
    soft_cap: float | None
    first_row: int
    ranks: ProcessGroup


def score_shards(
    weight: Float[Tensor, "W D"],
    hidden: Float[Tensor, "B T D"],
    targets: Int[Tensor, "B T"],
    loss: TokenLoss,
    *,
    soft_cap: float | None,
    first_row: int,
    ranks: ProcessGroup,
) -> LossTotal:
    """Score targets, the same on all ranks: the same sums on each, with the gradients of its rows."""
    states, flat = hidden.flatten(0, -2), targets.flatten()
    rule = ShardRule(
        dtype=compute_dtype(hidden),
        chunk_tokens=loss.logit_tokens(len(states)),
        z_loss_weight=loss.z_loss_weight,
        ignore_index=loss.ignore_index,
        soft_cap=soft_cap,
        first_row=first_row,
        ranks=ranks,
    )
    if torch.is_grad_enabled():
        objective, nats = _ShardScored.apply(states, weight, flat, rule)
    else:
        objective, nats, _, _ = _score(states, weight, flat, rule, with_gradients=False)
    return LossTotal(objective, nats=nats, num_tokens=(flat != loss.ignore_index).sum())


class _ShardScored(torch.autograd.Function):
    """Sums over tokens, with their gradients computed in the forward pass."""

    @staticmethod
    @override
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, rule: ShardRule
    ) -> tuple[Tensor, Tensor]:
        objective, nats, of_states, of_weight = _score(states, weight, targets, rule, with_gradients=True)
        ctx.save_for_backward(of_states.to(states.dtype), of_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nats)
        return objective, nats

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, of_objective: Tensor, of_nats: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        del of_nats
        of_states, of_weight = ctx.saved_tensors
        return of_states.mul_(of_objective), of_weight.mul_(of_objective), None, None


def _score(
    states: Float[Tensor, "N D"],
    weight: Float[Tensor, "W D"],
    targets: Int[Tensor, " N"],
    rule: ShardRule,
    *,
    with_gradients: bool,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, "N D"], Float[Tensor, "W D"]]:
    """Return objective and nats of the whole vocabulary, and this shard's part of the objective's gradients."""
    rows = weight.to(rule.dtype)
    sum_dtype = torch.promote_types(rule.dtype, torch.float32)
    objective = torch.zeros((), dtype=sum_dtype, device=states.device)
    nats = torch.zeros((), dtype=torch.float64, device=states.device)
    of_states: list[Tensor] = []
    of_weight = torch.zeros_like(weight, dtype=sum_dtype)
    for chunk, aims in zip(states.split(rule.chunk_tokens), targets.split(rule.chunk_tokens), strict=True):
        inputs = chunk.to(rule.dtype)  # [C, D]
        per_token, penalty, of_logits = _score_logits(inputs @ rows.T, aims, rule)
        objective = objective + per_token.sum() + penalty
        nats = nats + per_token.sum(dtype=torch.float64)
        if with_gradients:
            narrow = of_logits.to(rule.dtype)
            of_states.append(narrow @ rows)
            of_weight += narrow.T @ inputs
    return objective, nats, torch.cat(of_states) if of_states else states.new_empty(0), of_weight


def _score_logits(
    logits: Float[Tensor, "C W"], targets: Int[Tensor, " C"], rule: ShardRule
) -> tuple[Float[Tensor, " C"], Float[Tensor, ""], Float[Tensor, "C W"]]:
    """Return each token's nats, the z-loss of all, and the gradient of both by this shard's logits."""
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if rule.soft_cap is not None:
        scores = scores.div(rule.soft_cap).tanh().mul(rule.soft_cap)
    slope = None if rule.soft_cap is None else 1 - (scores / rule.soft_cap).square()
    valid = targets != rule.ignore_index
    row = targets - rule.first_row
    is_here = valid & (row >= 0) & (row < scores.shape[1])
    row = row.masked_fill(~is_here, 0).unsqueeze(1)  # [C, 1]
    largest = scores.amax(dim=-1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=rule.ranks)
    aimed = scores.sub_(largest.unsqueeze(1)).gather(1, row).squeeze(1).masked_fill(~is_here, 0.0)
    sums = torch.stack((scores.exp_().sum(dim=-1), aimed))
    dist.all_reduce(sums, group=rule.ranks)
    total, aimed = sums
    per_token = (total.log() - aimed).masked_fill(~valid, 0.0)
    log_z = total.log() + largest
    penalty = rule.z_loss_weight * log_z.square().masked_fill(~valid, 0.0).sum()
    share = ((1 + 2 * rule.z_loss_weight * log_z) / total).masked_fill(~valid, 0.0)
    of_scores = scores.mul_(share.unsqueeze(1)).scatter_add_(1, row, -is_here.unsqueeze(1).to(scores.dtype))
    return per_token, penalty, of_scores if slope is None else of_scores.mul_(slope)


def require_cuts(model: nn.Module, *, num_ranks: int) -> None:
    """Refuse a model that cannot be cut over `num_ranks` ranks.

    Raises:
        ConfigurationError: Its heads, features or rows do not divide, or it has layers unknown here.
    """
    if not isinstance(model, GPT2 | Llama):
        raise ConfigurationError(
            f"{type(model).__name__} has no cuts for a tensor group, GPT2 and Llama have; use strategy=fsdp."
        )
    for block in model.layers:
        assert isinstance(block, GPT2Block | LlamaBlock)
        sizes = {"vocab_size": model.vocab_size, **head_sizes(block)}
        feed_forward = block.feed_forward
        if isinstance(feed_forward, SwiGLU | SquaredReLU | GELU):
            sizes["feed_forward_width"] = feed_forward.down.in_features
        over_width = isinstance(block, LlamaBlock) and block.self_attention.qk_norm.over == "width"
        has_experts = "feed_forward_width" not in sizes
        require_parts(num_ranks, sizes, has_experts=has_experts, norms_all_heads=over_width)


def head_sizes(block: GPT2Block | LlamaBlock) -> dict[str, int]:
    """Return the heads of a layer, by the names of their settings."""
    if isinstance(block, GPT2Block):
        return {"num_heads": block.num_heads}
    attention = block.self_attention
    return {"num_heads": attention.num_heads, "num_kv_heads": attention.num_kv_heads}


def cut_model(model: LanguageModel, regions: Regions) -> TensorLayout:
    """Cut a model's weights in place over a tensor group, and let its layers compute with their parts.

    Raises:
        ConfigurationError: It cannot be cut.
    """
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
    for index, block in enumerate(model.layers):
        assert isinstance(block, LlamaBlock)
        name = f"layers.{index}"
        _cut_attention(block.self_attention, f"{name}.self_attention", layout)
        _cut_feed_forward(block.feed_forward, f"{name}.feed_forward", layout)
        _gather_after(layout, block.attention_norm, block.feed_forward_norm)
        layout.take_before(block)
    regions = layout.regions
    model.embedding.register_forward_hook(after(regions.slice))
    _end(model, layout, outside=("embedding", "value_embeddings", "head"))


def _cut_attention(attention: SelfAttention, name: str, layout: TensorLayout) -> None:
    layout.cut_rows(attention.qkv, f"{name}.qkv", parts=attention.fused_rows["qkv.weight"])
    layout.cut_columns(attention.output, f"{name}.output")
    if attention.value_gate is not None:
        layout.cut_rows(attention.value_gate, f"{name}.value_gate", parts=(attention.num_kv_heads,))
    if attention.key_smear is not None:
        layout.slice_smear(attention.key_smear)
    divide_heads(attention, layout.num_ranks)
    attention.fused_rows = {"qkv.weight": attention.widths}


def divide_heads(attention: SelfAttention, num_ranks: int) -> None:
    """Let attention count the heads of one rank."""
    attention.num_heads //= num_ranks
    attention.num_kv_heads //= num_ranks
    attention.widths = (attention.num_heads * attention.head_width, attention.value_width, attention.value_width)


def _cut_feed_forward(feed_forward: nn.Module, name: str, layout: TensorLayout) -> None:
    assert isinstance(feed_forward, SwiGLU | SquaredReLU | GELU)
    width = feed_forward.down.in_features
    if isinstance(feed_forward, SwiGLU):
        layout.cut_rows(feed_forward.gate_up, f"{name}.gate_up", parts=feed_forward.fused_rows["gate_up.weight"])
    else:
        layout.cut_rows(feed_forward.up, f"{name}.up", parts=(width,))
    layout.cut_columns(feed_forward.down, f"{name}.down")


def _gather_after(layout: TensorLayout, *norms: nn.Module) -> None:
    for norm in norms:
        norm.register_forward_hook(after(layout.regions.gather))


def after(move: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Return the hook to move a module's output."""
    return lambda module, inputs, output: move(output)


def _end(model: GPT2 | Llama, layout: TensorLayout, *, outside: tuple[str, ...]) -> None:
    """Gather after the last norm; uncut parameters from the first layer to it see a slice, or some heads, alone."""
    _gather_after(layout, model.final_norm)
    names = {name for name, _ in model.named_parameters()}
    layout.parts = {name for name in names - layout.cut if name.split(".")[0] not in outside}


def _score_by_shards(model: LanguageModel, layout: TensorLayout) -> None:
    """Let the loss, and other users of logits, work on shards of the vocabulary."""
    first_row, mesh = layout.first_row(model.vocab_size), layout.mesh

    def score(head: OutputHead, hidden: Tensor, targets: Tensor, loss: TokenLoss) -> LossTotal:
        weight: Any = head.weight
        return score_shards(
            weight.to_local(),
            hidden,
            targets,
            loss,
            soft_cap=head.soft_cap,
            first_row=first_row,
            ranks=mesh.get_group(),
        )

    def logits(hidden: Tensor) -> Tensor:
        head = model.output_head()
        weight: Any = head.weight
        return OutputHead(weight.full_tensor(), head.soft_cap)(hidden)

    for name, replacement in (("score", score), ("logits", logits)):
        setattr(model, name, replacement)
