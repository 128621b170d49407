"""Several SwiGLU layers side by side, a few of them for each token: a dropless mixture of experts.

Sorting tokens by expert instead of cutting off full ones: MegaBlocks, arXiv 2211.15841.
B batch, T tokens, D width, F width of one expert, N = B x T, E experts, k experts per token.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmtrain.errors import ConfigurationError
from lmtrain.models.grouped_linear import grouped_linear
from lmtrain.models.router import Routing, load_balance_loss, route, router_z_loss
from lmtrain.models.swiglu import swiglu
from lmtrain.models.weight_init import fill_linear, fill_normal


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The number of experts of a layer and of a token, and the settings for a balanced choice.

    `normalize_weights`: as in `route`. The penalties' weights are per token.
    Raises: ConfigurationError for more experts per token than there are, and for a negative weight.
    """

    num_experts: int
    num_experts_per_token: int
    normalize_weights: bool = True
    load_balance_weight: float = 0.0
    router_z_weight: float = 0.0

    def __post_init__(self) -> None:
        chosen, known = self.num_experts_per_token, self.num_experts
        if known < 1:
            raise ConfigurationError(f"model.experts.num_experts={known} is below 1; nearest valid: 1.")
        if not 1 <= chosen <= known:
            raise ConfigurationError(
                f"model.experts.num_experts_per_token={chosen} is not from 1 to model.experts.num_experts={known}; "
                f"nearest valid: {1 if chosen < 1 else known}."
            )
        weights = {"load_balance_weight": self.load_balance_weight, "router_z_weight": self.router_z_weight}
        for name, weight in weights.items():
            if not 0 <= weight < math.inf:
                raise ConfigurationError(f"model.experts.{name}={weight} is not 0 or above; nearest valid: 0.")


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
