"""Cross-entropy without the logits of the whole batch in memory: some tokens at a time, with their gradients at once.

The gradients of hidden states and head are known as soon as a chunk is scored, so they are added up in the forward
pass and the chunk's logits let go; the products are those of the plain loss, none is done twice.
B batch, T tokens, D width, V vocabulary, N = B * T tokens, C tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.losses.base import Compiler, TokenLoss
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.head import Loss, LossTotal, OutputHead, Rounding
from lmtrain.models.own_model import GivenLogits

FP32_SUMS: Final = frozenset({torch.bfloat16, torch.float16})  # of products, by cuBLAS into an fp32 total
Scores = Callable[..., tuple[Tensor, Tensor, Tensor | None]]  # as `score_logits`
MIN_CHUNKS = 8  # at small batches too, for less memory there as well


@final
@dataclass(frozen=True, kw_only=True)
class ChunkedCrossEntropy(TokenLoss):
    """Score at most `chunk_tokens` at a time, and at most an eighth of the batch.

    Each chunk adds to the head's gradient in fp32, at a cost in bandwidth: larger chunks are faster and take more
    memory, C x V numbers a few times over.
    """

    chunk_tokens: int = 4096

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("loss.chunk_tokens", self.chunk_tokens)

    @override
    def logit_tokens(self, num_tokens: int) -> int:
        return min(self.chunk_tokens, max(1, -(-num_tokens // MIN_CHUNKS)))

    @override
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        return chunked_total(self, project, hidden, targets)

    @override
    def compiled(self, compiler: Compiler) -> Loss:
        """Compile a chunk's scores alone: over a graph of all chunks, every chunk's product would live to its end."""
        return partial(chunked_total, self, scores=compiler(score_logits))


class VocabularyShard(NamedTuple):
    """The rows of the vocabulary from `first_row` on, as many as the weight has; other ranks have the others.

    `take_largest` and `add_up` reduce a tensor over the ranks, in place.
    """

    first_row: int
    take_largest: Callable[[Tensor], object]
    add_up: Callable[[Tensor], object]


class Rule(NamedTuple):
    """How tokens are scored: products in `dtype` of rounded operands, everything else in fp32 or better."""

    dtype: torch.dtype
    chunk_tokens: int
    z_loss_weight: float
    ignore_index: int
    soft_cap: float | None
    rounding: Rounding
    shard: VocabularyShard | None


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """Return the format of the head's product: the dtype of autocast where it is on (the meta device has none)."""
    kind = hidden.device.type
    has_autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if has_autocast else hidden.dtype


class _Scored(torch.autograd.Function):
    """Sums over tokens, with their gradients computed in the forward pass."""

    @staticmethod
    @override
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, states: Tensor, weight: Tensor, head: Tensor, targets: Tensor, rule: Rule, scores: Scores
    ) -> tuple[Tensor, Tensor]:
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        objective, nats, of_states, of_weight = score(states, head, targets, rule, gradients=wanted, scores=scores)
        ctx.save_for_backward(of_states, of_weight if of_weight is None else of_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nats)
        return objective, nats

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, of_objective: Tensor, of_nats: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        del of_nats
        of_states, of_weight = ctx.saved_tensors
        # In place, to avoid a copy of the head's gradient: a second backward pass is an error.
        scaled = (gradient if gradient is None else gradient.mul_(of_objective) for gradient in (of_states, of_weight))
        return (*scaled, None, None, None, None)


def chunked_total(
    loss: TokenLoss,
    project: OutputHead,
    hidden: Float[Tensor, "B T D"],
    targets: Int[Tensor, "B T"],
    *,
    scores: "Scores | None" = None,
    shard: VocabularyShard | None = None,
) -> LossTotal:
    """Score targets chunk by chunk; of a `shard` of the vocabulary, the same sums on every rank of it.

    `scores` is `score_logits`, perhaps compiled. Logits that a model gives whole are scored at once.
    """
    if isinstance(cast("object", project), GivenLogits):
        whole = CrossEntropy(z_loss_weight=loss.z_loss_weight, ignore_index=loss.ignore_index)
        return whole(project, hidden, targets)
    states, flat, weight = hidden.flatten(0, -2), targets.flatten(), project.weight
    head = project.product_weight.detach()  # the gradient of the parameter itself is summed here, in fp32
    wants_gradients = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    rule = Rule(
        dtype=compute_dtype(hidden),
        chunk_tokens=loss.logit_tokens(len(states)),
        z_loss_weight=loss.z_loss_weight,
        ignore_index=loss.ignore_index,
        soft_cap=project.soft_cap,
        rounding=project.rounding if wants_gradients and project.rounding is not None else Rounding(),
        shard=shard,
    )
    scores = scores or score_logits
    if wants_gradients:
        objective, nats = _Scored.apply(states, weight, head, flat, rule, scores)
    else:
        objective, nats, _, _ = score(states, head, flat, rule, gradients=(False, False), scores=scores)
    return LossTotal(objective, nats=nats, num_tokens=(flat != loss.ignore_index).sum())


def score(
    states: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    rule: Rule,
    *,
    gradients: tuple[bool, bool],
    scores: Scores,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, "N D"] | None, Float[Tensor, "V D"] | None]:
    """Return objective, nats, and the objective's gradients of states and, in fp32 or better, of weight, if wanted."""
    to_logits, to_states = rule.rounding.weight(weight.to(rule.dtype))  # once for all chunks
    sum_dtype = torch.promote_types(rule.dtype, torch.float32)
    objective = torch.zeros((), dtype=sum_dtype, device=states.device)
    nats = torch.zeros((), dtype=torch.float64, device=states.device)
    of_states: list[Tensor] = []
    of_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, sum_dtype)) if gradients[1] else None
    for chunk, aims in zip(states.split(rule.chunk_tokens), targets.split(rule.chunk_tokens), strict=True):
        inputs = rule.rounding.states(chunk.to(rule.dtype))  # [C, D]
        per_token, penalty, of_logits = scores(inputs @ to_logits, aims, rule, gradients=any(gradients))
        objective = objective + per_token.sum() + penalty
        nats = nats + per_token.sum(dtype=torch.float64)
        if of_logits is not None:
            of_logits = rule.rounding.gradient(of_logits, rule.dtype)
            if gradients[0]:
                of_states.append((of_logits @ to_states).to(states.dtype))  # [C, D]
            if of_weight is not None:
                _add_product(of_weight, of_logits.t(), inputs)
        del of_logits  # before the next chunk's logits come
    return (
        objective,
        nats,
        torch.cat(of_states) if gradients[0] else None,
        of_weight,
    )


def score_logits(
    logits: Float[Tensor, "C V"], targets: Int[Tensor, " C"], rule: Rule, *, gradients: bool
) -> tuple[Float[Tensor, " C"], Float[Tensor, ""], Float[Tensor, "C V"] | None]:
    """Return each token's nats, the z-loss of all, and the gradient of both; the logits are overwritten with it."""
    dtype, logits_width = logits.dtype, logits.shape[1]
    scores = logits.to(torch.promote_types(dtype, torch.float32))
    del logits
    if rule.soft_cap is not None:
        scores = scores.div_(rule.soft_cap).tanh_().mul_(rule.soft_cap)
    valid = is_here = targets != rule.ignore_index
    if rule.shard is not None:
        targets = targets - rule.shard.first_row
        is_here = valid & (targets >= 0) & (targets < logits_width)
    aims = targets.masked_fill(~is_here, 0).unsqueeze(1)  # [C, 1]
    slope = None if rule.soft_cap is None or not gradients else 1 - (scores / rule.soft_cap).square()
    largest = scores.amax(dim=-1, keepdim=True)  # [C, 1]
    if rule.shard is not None:
        rule.shard.take_largest(largest)
    aimed = scores.sub_(largest).gather(1, aims).squeeze(1)  # [C]
    total = scores.exp_().sum(dim=-1)  # in place: no second [C, V], as logsumexp would take
    if rule.shard is not None:
        sums = torch.stack((total, aimed.masked_fill(~is_here, 0.0)))
        rule.shard.add_up(sums)
        total, aimed = sums
    per_token = (total.log() - aimed).masked_fill(~valid, 0.0)
    log_z = total.log() + largest.squeeze(1)
    penalty = rule.z_loss_weight * log_z.square().masked_fill(~valid, 0.0).sum()
    if not gradients:
        return per_token, penalty, None
    scale = rule.rounding.gradient_scale
    share = (scale * (1 + 2 * rule.z_loss_weight * log_z) / total).masked_fill(~valid, 0.0)
    of_scores = scores.mul_(share.unsqueeze(1))  # [C, V]
    if torch.compiler.is_compiling():  # fused into the cast, where a scatter would have its own fp32 [C, V]
        is_aim = torch.arange(logits_width, device=aims.device) == aims  # [C, V]
        of_scores = of_scores - (is_aim & is_here.unsqueeze(1)).to(of_scores.dtype) * scale
    else:
        of_scores.scatter_add_(1, aims, -scale * is_here.unsqueeze(1).to(of_scores.dtype))
    if slope is not None:
        of_scores = of_scores.mul_(slope)
    return per_token, penalty, of_scores.to(rule.rounding.gradient_dtype or dtype)


def _add_product(total: Float[Tensor, "V D"], left: Float[Tensor, "V C"], right: Float[Tensor, "C D"]) -> None:
    """Add a product to the sum; the sum stays in fp32 where products are rounded."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif _is_summed_by_library(total, left):
        torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)  # no product in memory
    else:
        total += left @ right


def _is_summed_by_library(total: Tensor, left: Tensor) -> bool:
    """Return whether the library sums rounded products into an fp32 total; Inductor (torch 2.13) cannot lower it."""
    is_plain = type(left) is Tensor and left.dtype in FP32_SUMS
    return is_plain and total.is_cuda and not torch.compiler.is_compiling()


def chunked_cross_entropy_facts(*, chunk_tokens: int = 4096) -> LossFacts:
    """Make the head's products chunk by chunk."""
    return LossFacts(makes_head_products=True, in_chunks=True, chunk_tokens=chunk_tokens)
