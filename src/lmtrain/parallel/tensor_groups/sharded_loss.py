"""Cross-entropy over shards of the vocabulary: each rank makes the logits of its rows, and sends sums of each token.

arXiv 1909.08053 section 3; the gradient of a chunk's logits is taken at once, with only one chunk's in memory.
B batch, T tokens, N = B * T, C tokens of a chunk, D width, W rows of a shard.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from typing_extensions import override

from lmtrain.losses.base import TokenLoss
from lmtrain.losses.chunked import compute_dtype
from lmtrain.models.loss import LossTotal


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
    """Score targets, the same on all ranks: the same sums on each, with the gradients of its own rows' part."""
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
