"""Mixture-of-experts feed-forward: a router chooses experts for each token, and grouped products run them.

Top-k routing of Mixtral (arXiv 2401.04088 section 2.1) and OLMoE (2409.02060), the load-balance loss of the Switch
Transformer (2101.03961 eq. 4 to 6), the router z-loss of ST-MoE (2202.08906 eq. 5).

Rows sorted by expert are multiplied by two operators that are opaque to torch.compile, so groups of any size never
break a graph. On a GPU with torch's grouped kernel (bf16, Hopper and later) all groups run in one launch and nothing
waits for the device; elsewhere they run one after the other.
N tokens, E experts, k chosen, M rows, I inputs, O outputs, B batch, T tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.models.feed_forward import swiglu
from lmtrain.models.weight_init import fill_linear, fill_normal


class Routing(NamedTuple):
    """The routing: weights fp32 [N, k], experts int64 [N, k], and the probability of every expert fp32 [N, E]."""

    weights: Tensor
    experts: Tensor
    probabilities: Tensor


def route(scores: Tensor, *, num_experts_per_token: int, normalize_weights: bool) -> Routing:
    """Choose each token's likeliest experts by scores [N, E].

    With `normalize_weights` the weights of the chosen sum to 1, a softmax over the chosen alone (Mixtral); without,
    they are a softmax's over all experts (OLMoE).
    """
    probabilities = scores.float().softmax(dim=-1)
    weights, experts = probabilities.topk(num_experts_per_token, dim=-1)
    if normalize_weights:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routing(weights, experts, probabilities)


def load_balance_loss(routing: Routing, average: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Return the scalar E x sum over experts of (share of tokens x mean probability); k when all is balanced.

    A token counts for each of its k experts. Only the probabilities carry a gradient. `average` makes of the shares [E]
    those of more tokens than these; None has no others.
    """
    num_tokens, num_experts = routing.probabilities.shape
    ones = torch.ones_like(routing.experts, dtype=torch.float32)
    chosen = torch.zeros_like(routing.probabilities).scatter(-1, routing.experts, ones)  # [N, E]
    shares = chosen.sum(dim=0) / num_tokens
    if average is not None:
        shares = average(shares)
    return num_experts * (shares * routing.probabilities.mean(dim=0)).sum()


def router_z_loss(scores: Tensor) -> Tensor:
    """Return the mean over tokens of log Z squared, for scores [N, E]: it keeps scores small."""
    return scores.float().logsumexp(dim=-1).square().mean()


GROUPED_KERNEL_SINCE = (9, 0)  # compute capability
ALIGNED_TO = 8  # bf16 numbers: the kernel's rows begin at multiples of 16 bytes


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group of rows by its own matrix: [M, I], [E, O, I], int32 [E] -> [M, O].

    Group e is rows ends[e - 1] to ends[e]; the last end is M. A group may be empty.
    """
    return _grouped_linear(x, weight, ends)


@torch.library.custom_op("lmtrain::grouped_linear", mutates_args=())
def _grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if has_grouped_kernel(x, weight):
        return F.grouped_mm(x, weight.mT, offs=ends)
    y = x.new_empty(x.shape[0], weight.shape[1])
    for matrix, start, end in _groups(weight, ends):
        torch.mm(x[start:end], matrix.mT, out=y[start:end])
    return y


@torch.library.custom_op("lmtrain::grouped_outer", mutates_args=())
def _grouped_outer(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Return the gradient of the matrices: [M, O], [M, I], int32 [E] -> [E, O, I]."""
    if has_grouped_kernel(gradient, x):
        return F.grouped_mm(gradient.mT, x, offs=ends)
    outer = x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])
    for matrix, start, end in _groups(outer, ends):
        torch.mm(gradient[start:end].mT, x[start:end], out=matrix)
    return outer


def has_grouped_kernel(first: Tensor, second: Tensor) -> bool:
    """Return whether torch's grouped kernel can multiply these."""
    return (
        first.is_cuda
        and first.dtype == second.dtype == torch.bfloat16
        and all(size % ALIGNED_TO == 0 for size in (first.shape[-1], *second.shape[-2:]))
        and torch.cuda.get_device_capability(first.device) >= GROUPED_KERNEL_SINCE
    )


def _groups(matrices: Tensor, ends: Tensor) -> list[tuple[Tensor, int, int]]:
    stops: list[int] = ends.tolist()
    return list(zip(matrices, [0, *stops[:-1]], stops, strict=True))


@_grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    del ends
    return x.new_empty(x.shape[0], weight.shape[1])


@_grouped_outer.register_fake
def _(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_x = _grouped_linear(gradient, weight.mT, ends) if ctx.needs_input_grad[0] else None
    of_weight = _grouped_outer(gradient, x, ends) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


_grouped_linear.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.lmtrain.grouped_linear)
def _linear_flops(x: tuple[int, int], weight: tuple[int, int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.lmtrain.grouped_outer)
def _outer_flops(gradient: tuple[int, int], x: tuple[int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * gradient[1] * x[1]


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The number of experts of a layer and of a token, and the settings for a balanced choice.

    `normalize_weights`: as in `route`. The penalties' weights are per token.
    """

    num_experts: int
    num_experts_per_token: int
    normalize_weights: bool = True
    load_balance_weight: float = 0.0
    router_z_weight: float = 0.0

    def __post_init__(self) -> None:
        require_count("model.experts.num_experts", self.num_experts)
        require_number(
            "model.experts.num_experts_per_token",
            self.num_experts_per_token,
            at_least=1,
            at_most=self.num_experts,
            usual=f"{1 if self.num_experts_per_token < 1 else self.num_experts}",
        )
        for name in ("load_balance_weight", "router_z_weight"):
            require_number(f"model.experts.{name}", getattr(self, name), at_least=0, usual="0")


@final
class MixtureOfExperts(nn.Module):
    """Send each token to its likeliest experts, each `feed_forward_width` wide, and add up their outputs.

    `average_shares` makes of the experts' shares of these tokens those of a whole sequence, where these are a slice.
    """

    average_shares: Callable[[Tensor], Tensor] | None = None

    def __init__(self, width: int, feed_forward_width: int, *, experts: Experts) -> None:
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(width, experts.num_experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(experts.num_experts, 2 * feed_forward_width, width))
        self.down = nn.Parameter(torch.empty(experts.num_experts, width, feed_forward_width))

    @property
    def fused_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix in an expert's fused weight: gate, up."""
        return {"gate_up": (self.down.shape[-1],) * 2}

    @property
    def num_idle_parameters(self) -> int:
        """Return how many parameters of experts one token does not meet."""
        per_expert = self.gate_up[0].numel() + self.down[0].numel()
        return (self.experts.num_experts - self.experts.num_experts_per_token) * per_expert

    def forward(self, x: Float[Tensor, "*B D"]) -> tuple[Float[Tensor, "*B D"], Float[Tensor, ""]]:
        """Transform each token: [B, T, D] -> [B, T, D], and the penalty: a scalar, summed over the tokens."""
        flat = x.flatten(0, -2)  # [N, D]
        scores = self.router(flat)  # [N, E]
        routing = route(
            scores,
            num_experts_per_token=self.experts.num_experts_per_token,
            normalize_weights=self.experts.normalize_weights,
        )
        return self._mixed(flat, routing).view_as(x), self._penalty(scores, routing)

    def initialize_weights(self, generator: torch.Generator, *, std: float, output_std: float) -> None:
        """Fill in place; `output_std` is of the matrices into the residual stream."""
        fill_linear(self.router, std=std, generator=generator)
        fill_normal(self.gate_up, std=std, generator=generator)
        fill_normal(self.down, std=output_std, generator=generator)

    def _mixed(self, flat: Tensor, routing: Routing) -> Tensor:
        """Run every (token, expert) pair, sorted by expert, and add them up by token: [N, D] -> [N, D]."""
        dtype, num_chosen = _compute_dtype(flat), self.experts.num_experts_per_token
        experts, order = routing.experts.flatten().sort(stable=True)  # [N * k] each
        ends = torch.searchsorted(
            experts, torch.arange(self.router.out_features, device=flat.device), right=True
        ).int()  # [E]
        rows = flat.to(dtype)[order // num_chosen]  # [N * k, D]
        gate_up = grouped_linear(rows, self.gate_up.to(dtype), ends)  # [N * k, 2F]
        made = grouped_linear(swiglu(gate_up), self.down.to(dtype), ends)  # [N * k, D]
        by_token = made[order.argsort()].unflatten(0, (-1, num_chosen))  # [N, k, D]
        return (by_token * routing.weights[..., None].to(dtype)).sum(dim=1).to(flat.dtype)

    def _penalty(self, scores: Tensor, routing: Routing) -> Tensor:
        penalty = torch.zeros((), device=scores.device)
        if self.experts.load_balance_weight:
            penalty = penalty + self.experts.load_balance_weight * load_balance_loss(routing, self.average_shares)
        if self.experts.router_z_weight:
            penalty = penalty + self.experts.router_z_weight * router_z_loss(scores)
        return penalty * scores.shape[0]


def _compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a matrix product of x; autocast knows nothing of our own operators."""
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)
