"""Choose experts for tokens, with the two penalties for a balanced choice.

Top-k routing of Mixtral (arXiv 2401.04088 section 2.1) and OLMoE (2409.02060), the load-balance loss of the Switch
Transformer (2101.03961 eq. 4 to 6), the router z-loss of ST-MoE (2202.08906 eq. 5). N tokens, E experts, k chosen.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


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
