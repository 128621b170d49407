"""Mixture-of-experts feed-forward: a router chooses experts for each token, and grouped products run them.

Top-k routing of Mixtral (arXiv 2401.04088 section 2.1) and OLMoE (2409.02060), the load-balance loss of the Switch
Transformer (2101.03961 eq. 4 to 6), the router z-loss of ST-MoE (2202.08906 eq. 5). Sigmoid scores, groups, shared
experts and the bias that balances the choice are those of DeepSeek (2401.06066, 2408.15664, 2412.19437 section 2.1.2),
the gate of a shared expert is Qwen 2's, biases and the clamped gate are those of gpt-oss.

Rows sorted by expert are multiplied by two operators that are opaque to torch.compile, so groups of any size never
break a graph. On a GPU with torch's grouped kernel (bf16, Hopper and later) all groups run in one launch and nothing
waits for the device; elsewhere they run one after the other.
N tokens, E experts, k chosen, M rows, I inputs, O outputs, B batch, T tokens, D width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.models.feed_forward import SwiGLU, swiglu
from lmtrain.models.weight_init import fill_constant, fill_linear, fill_normal


class ExpertMatrices(NamedTuple):
    """The matrices of all experts [E, 2F, D] and [E, D, F], and their biases [E, 2F] and [E, D], if any."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


class Routing(NamedTuple):
    """The routing: weights fp32 [N, k], experts int64 [N, k], and the probability of every expert fp32 [N, E]."""

    weights: Tensor
    experts: Tensor
    probabilities: Tensor


Scores = Literal["softmax", "sigmoid"]
SCORES: tuple[Scores, ...] = ("softmax", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of a layer and of a token, their router, and the settings for a balanced choice.

    With `normalize_weights` the weights of a token's experts sum to 1 (Mixtral); without, they are their `scores`
    among all experts (OLMoE). `weight_scale` multiplies them. A token chooses among the experts of its best
    `num_groups_per_token` of `num_groups` groups; a group is as good as its best expert, or by sigmoid its best two.
    `bias_step` adds a bias to the scores for the choice alone, moved by so much after each step towards experts with
    few tokens; 0 keeps it as it is. The penalties' weights are per token. An expert of `shared_width` takes every
    token, with `shared_gate` times a sigmoid of it. `dense_layers`, from 0, have one feed-forward of `dense_width`
    instead of experts. With `biases` router and experts have them. `gate_limit` clamps the halves of SwiGLU, whose gate
    is then g sigmoid(1.702 g) and whose other half is moved up by 1.
    """

    num_experts: int
    num_experts_per_token: int
    normalize_weights: bool = True
    load_balance_weight: float = 0.0
    router_z_weight: float = 0.0
    scores: Scores = "softmax"
    weight_scale: float = 1.0
    num_groups: int = 1
    num_groups_per_token: int = 1
    bias_step: float | None = None
    shared_width: int | None = None
    shared_gate: bool = False
    dense_layers: Sequence[int] = ()
    dense_width: int | None = None
    biases: bool = False
    gate_limit: float | None = None

    def __post_init__(self) -> None:
        require_count("model.experts.num_experts", self.num_experts)
        require_count("model.experts.num_groups", self.num_groups)
        if self.num_experts % self.num_groups:
            raise ConfigurationError(
                f"model.experts.num_groups: must divide model.experts.num_experts={self.num_experts}, got "
                f"{self.num_groups}. Did you mean {math.gcd(self.num_experts, self.num_groups)}?"
            )
        self._require_at_most("num_groups_per_token", self.num_groups)
        most = self.num_experts // self.num_groups * self.num_groups_per_token
        self._require_at_most("num_experts_per_token", most)
        for name in ("load_balance_weight", "router_z_weight"):
            require_number(f"model.experts.{name}", getattr(self, name), at_least=0, usual="0")
        if self.bias_step is not None:
            require_number("model.experts.bias_step", self.bias_step, at_least=0, usual="0.001")
        if self.gate_limit is not None:
            require_number("model.experts.gate_limit", self.gate_limit, above=0, usual="7.0")
        require_number("model.experts.weight_scale", self.weight_scale, above=0, usual="1.0")
        for name, value in (("shared_width", self.shared_width), ("dense_width", self.dense_width)):
            require_count(f"model.experts.{name}", value)
        if self.scores not in SCORES:
            known, near = " or ".join(SCORES), suggest(str(self.scores), SCORES)
            raise ConfigurationError(f"model.experts.scores: must be {known}, got {self.scores}.{near}")
        for name, is_there, needs in (
            ("shared_gate", self.shared_width is not None, "shared_width"),
            ("dense_layers", self.dense_width is not None, "dense_width"),
        ):
            if getattr(self, name) and not is_there:
                raise ConfigurationError(f"model.experts.{name} needs model.experts.{needs}.")

    def _require_at_most(self, name: str, most: int) -> None:
        value = getattr(self, name)
        usual = f"{1 if value < 1 else most}"
        require_number(f"model.experts.{name}", value, at_least=1, at_most=most, usual=usual)


def route(scores: Tensor, experts: Experts, bias: Tensor | None = None) -> Routing:
    """Choose each token's best experts by scores [N, E], with a `bias` [E] for the choice alone."""
    by_sigmoid = experts.scores == "sigmoid"
    probabilities = scores.float().sigmoid() if by_sigmoid else scores.float().softmax(dim=-1)
    if bias is None and experts.num_groups == 1:
        weights, chosen = probabilities.topk(experts.num_experts_per_token, dim=-1)
    else:
        choice = probabilities.detach() if bias is None else probabilities.detach() + bias
        if experts.num_groups > 1:
            choice = _within_best_groups(choice, experts)
        chosen = choice.topk(experts.num_experts_per_token, dim=-1).indices
        weights = probabilities.gather(-1, chosen)
    if experts.normalize_weights:
        total = weights.sum(dim=-1, keepdim=True)
        weights = weights / (total + 1e-20 if by_sigmoid else total)
    if experts.weight_scale != 1.0:
        weights = weights * experts.weight_scale
    if by_sigmoid:
        probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    return Routing(weights, chosen, probabilities)


def _within_best_groups(choice: Tensor, experts: Experts) -> Tensor:
    """Take the experts of all other groups out of the choice: [N, E] -> [N, E]."""
    groups = choice.unflatten(-1, (experts.num_groups, -1))  # [N, G, E / G]
    num_best = min(2 if experts.scores == "sigmoid" else 1, groups.shape[-1])
    worth = groups.topk(num_best, dim=-1).values.sum(dim=-1)  # [N, G]
    best = worth.topk(experts.num_groups_per_token, dim=-1).indices
    is_out = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, value=False)
    return groups.masked_fill(is_out.unsqueeze(-1), -math.inf).flatten(-2)


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


GATE_SLOPE = 1.702  # of the clamped gate: close to GELU
GROUPED_KERNEL_SINCE = (9, 0)  # compute capability
FEWEST_ROWS = 4  # products of fewer round otherwise on a CPU: a token's would depend on the tokens of other documents
ALIGNED_TO = 8  # bf16 numbers: the kernel's rows begin at multiples of 16 bytes


@torch.library.custom_op("lmtrain::grouped_linear", mutates_args=())
def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group of rows by its own matrix: [M, I], [E, O, I], int32 [E] -> [M, O].

    Group e is rows ends[e - 1] to ends[e]; the last end is M. A group may be empty.
    """
    if has_grouped_kernel(x, weight):
        return F.grouped_mm(x, weight.mT, offs=ends)
    y = x.new_empty(x.shape[0], weight.shape[1])
    for matrix, start, end in _groups(weight, ends):
        if 0 < (missing := FEWEST_ROWS - (end - start)) < FEWEST_ROWS:
            y[start:end] = torch.mm(F.pad(x[start:end], (0, 0, 0, missing)), matrix.mT)[: end - start]
        else:
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


@grouped_linear.register_fake
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
    of_x = grouped_linear(gradient, weight.mT, ends) if ctx.needs_input_grad[0] else None
    of_weight = _grouped_outer(gradient, x, ends) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


grouped_linear.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.lmtrain.grouped_linear)
def _linear_flops(x: tuple[int, int], weight: tuple[int, int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.lmtrain.grouped_outer)
def _outer_flops(gradient: tuple[int, int], x: tuple[int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * gradient[1] * x[1]


def inverse(order: Tensor) -> Tensor:
    """Return the place of each row in a permuted order: int64 [M] -> [M]."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


class TakenRows(torch.autograd.Function):
    """Take rows of x [M / n, D], each n times in a permuted order [M] -> [M, D]; torch's own gradient adds row by row.

    `order` has the copies of row i at n i to n i + n - 1, `places` is its inverse.
    """

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, order: Tensor, places: Tensor, num_copies: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(places)
        ctx.num_copies = num_copies
        return x.index_select(0, order // num_copies if num_copies > 1 else order)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        of_copies = gradient.index_select(0, places)
        made = of_copies if ctx.num_copies == 1 else of_copies.unflatten(0, (-1, ctx.num_copies)).sum(dim=1)
        return made, None, None, None


@final
class MixtureOfExperts(nn.Module):
    """Send each token to its likeliest experts, each `feed_forward_width` wide, and add up their outputs.

    `average_shares` makes of the experts' shares of these tokens those of all ranks, while training.
    """

    whole_in_groups = ("router", "shared_gate", "gate_up_bias", "down_bias")
    average_shares: Callable[[Tensor], Tensor] | None = None
    choice_bias: Tensor | None
    num_chosen: Tensor | None

    def __init__(self, width: int, feed_forward_width: int, *, experts: Experts) -> None:
        super().__init__()
        self.experts, self.feed_forward_width = experts, feed_forward_width
        self.router = nn.Linear(width, experts.num_experts, bias=experts.biases)
        self.gate_up = nn.Parameter(torch.empty(experts.num_experts, 2 * feed_forward_width, width))
        self.down = nn.Parameter(torch.empty(experts.num_experts, width, feed_forward_width))
        self.gate_up_bias, self.down_bias = None, None
        if experts.biases:
            self.gate_up_bias = nn.Parameter(torch.zeros(experts.num_experts, 2 * feed_forward_width))
            self.down_bias = nn.Parameter(torch.zeros(experts.num_experts, width))
        self.shared = None if experts.shared_width is None else SwiGLU(width, experts.shared_width)
        self.shared_gate = nn.Linear(width, 1, bias=False) if experts.shared_gate else None
        has_bias, is_moved = experts.bias_step is not None, bool(experts.bias_step)
        self.register_buffer("choice_bias", torch.zeros(experts.num_experts) if has_bias else None)
        counts = torch.zeros(experts.num_experts) if is_moved else None
        self.register_buffer("num_chosen", counts, persistent=False)  # of each expert since the last step

    @property
    def fused_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix in an expert's fused weight: gate, up."""
        return {"gate_up": (self.feed_forward_width,) * 2}

    def matrices(self) -> ExpertMatrices:
        """Return what multiplies the tokens; ranks that share experts put their parts in its place."""
        return ExpertMatrices(self.gate_up, self.down, self.gate_up_bias, self.down_bias)

    @property
    def num_idle_parameters(self) -> int:
        """Return how many parameters of experts one token does not meet."""
        held = (self.gate_up, self.down, self.gate_up_bias, self.down_bias)
        per_expert = sum(each[0].numel() for each in held if each is not None)
        return (self.experts.num_experts - self.experts.num_experts_per_token) * per_expert

    @property
    def num_product_parameters(self) -> int:
        """Return how many parameters of experts multiply one token."""
        return self.experts.num_experts_per_token * (self.gate_up[0].numel() + self.down[0].numel())

    def forward(self, x: Float[Tensor, "*B D"]) -> tuple[Float[Tensor, "*B D"], Float[Tensor, ""]]:
        """Transform each token: [B, T, D] -> [B, T, D], and the penalty: a scalar, summed over the tokens."""
        flat = x.flatten(0, -2)  # [N, D]
        scores = self.router(flat)  # [N, E]
        routing = route(scores, self.experts, self.choice_bias)
        if self.num_chosen is not None and self.training:
            self._count(routing.experts)
        mixed = self._mixed(flat, routing)
        if self.shared is not None:
            shared = self.shared(flat)
            mixed = mixed + (shared if self.shared_gate is None else self.shared_gate(flat).sigmoid() * shared)
        return mixed.view_as(x), self._penalty(scores, routing)

    def initialize_weights(self, generator: torch.Generator, *, std: float, output_std: float) -> None:
        """Fill in place; `output_std` is of the matrices into the residual stream."""
        fill_linear(self.router, std=std, generator=generator)
        fill_normal(self.gate_up, std=std, generator=generator)
        fill_normal(self.down, std=output_std, generator=generator)
        if self.shared is not None:
            fill_linear(self.shared.gate_up, std=std, generator=generator)
            fill_linear(self.shared.down, std=output_std, generator=generator)
        if self.shared_gate is not None:
            fill_linear(self.shared_gate, std=std, generator=generator)
        for zero in (self.gate_up_bias, self.down_bias, self.choice_bias, self.num_chosen):
            if zero is not None:
                fill_constant(zero, 0.0)

    @torch.no_grad()
    def _count(self, chosen: Tensor) -> None:
        """Add up the tokens of each expert, experts [N, k]; twice where a block is recomputed, for all alike."""
        assert self.num_chosen is not None
        ones = torch.ones_like(chosen, dtype=self.num_chosen.dtype).flatten()
        self.num_chosen.index_add_(0, chosen.flatten(), ones)

    def _mixed(self, flat: Tensor, routing: Routing) -> Tensor:
        """Run every (token, expert) pair, sorted by expert, and add them up by token: [N, D] -> [N, D]."""
        dtype, num_chosen = _compute_dtype(flat), self.experts.num_experts_per_token
        experts, order = routing.experts.flatten().sort(stable=True)  # [N * k] each
        places = inverse(order)
        rows = TakenRows.apply(flat.to(dtype), order, places, num_chosen)  # [N * k, D]
        made = self.run_experts(rows, experts)
        by_token = TakenRows.apply(made, places, order, 1).unflatten(0, (-1, num_chosen))  # [N, k, D]
        return (by_token * routing.weights[..., None].to(dtype)).sum(dim=1).to(flat.dtype)

    def run_experts(self, rows: Tensor, experts: Tensor) -> Tensor:
        """Transform each row [M, D] by its expert, int64 [M] in ascending order; ranks may send rows to one another."""
        dtype, (gate_up_weight, down_weight, gate_up_bias, down_bias) = rows.dtype, self.matrices()
        ends = torch.searchsorted(experts, torch.arange(len(gate_up_weight), device=rows.device), right=True).int()
        gate_up = grouped_linear(rows, gate_up_weight.to(dtype), ends)  # [N * k, 2F]
        if gate_up_bias is not None:
            gate_up = gate_up + F.embedding(experts, gate_up_bias.to(dtype))
        limit = self.experts.gate_limit
        gated = swiglu(gate_up) if limit is None else clamped_swiglu(gate_up, limit)
        made = grouped_linear(gated, down_weight.to(dtype), ends)  # [N * k, D]
        if down_bias is not None:
            made = made + F.embedding(experts, down_bias.to(dtype))
        return made

    def _penalty(self, scores: Tensor, routing: Routing) -> Tensor:
        penalty = torch.zeros((), device=scores.device)
        if self.experts.load_balance_weight:
            average = self.average_shares if self.training else None
            penalty = penalty + self.experts.load_balance_weight * load_balance_loss(routing, average)
        if self.experts.router_z_weight:
            penalty = penalty + self.experts.router_z_weight * router_z_loss(scores)
        return penalty * scores.shape[0]


def clamped_swiglu(gate_up: Float[Tensor, "*N E"], limit: float) -> Float[Tensor, "*N F"]:
    """Gate by halves kept within a limit, as gpt-oss does: [..., 2F] -> [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=limit)
    return (up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(GATE_SLOPE * gate)


def balanced_layers(model: nn.Module) -> list[MixtureOfExperts]:
    """Return the layers whose bias is moved after each step."""
    experts = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    return [module for module in experts if module.num_chosen is not None]


@torch.no_grad()
def balance(layers: Sequence[MixtureOfExperts], sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
    """Move each layer's bias towards experts with fewer tokens than the mean, by the counts of all ranks."""
    if not layers:
        return
    of_all = sum_over_ranks(torch.stack([cast("Tensor", layer.num_chosen) for layer in layers]))  # [L, E]
    for layer, counts in zip(layers, of_all, strict=True):
        bias, step = cast("Tensor", layer.choice_bias), cast("float", layer.experts.bias_step)
        bias.add_((counts.mean() - counts).sign(), alpha=step)
        cast("Tensor", layer.num_chosen).zero_()


def _compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a matrix product of x; autocast knows nothing of our own operators."""
    kind = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(kind):
        return x.dtype
    return torch.get_autocast_dtype(kind)
