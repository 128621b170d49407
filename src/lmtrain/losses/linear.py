"""Cross-entropy by torch's own `linear_cross_entropy`, from torch 2.13 on.

B batch, T tokens, D width, V vocabulary, N = B * T tokens.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.losses.base import TokenLoss
from lmtrain.losses.chunked import MIN_CHUNKS, compute_dtype
from lmtrain.models.head import LossTotal, OutputHead


@final
@dataclass(frozen=True, kw_only=True)
class LinearCrossEntropy(TokenLoss):
    """Let torch score at most `chunk_tokens` at a time, and at most an eighth of the batch.

    A z-loss needs each token's own sum: torch then scores every chunk a second time in the backward pass.
    """

    chunk_tokens: int = 4096

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("loss.chunk_tokens", self.chunk_tokens)
        if not hasattr(F, "linear_cross_entropy") or not hasattr(nn, "LinearCrossEntropyOptions"):
            raise EnvironmentProblem(
                f"loss=linear needs torch 2.13, and this is {torch.__version__}; use loss=chunked."
            )

    @override
    def logit_tokens(self, num_tokens: int) -> int:
        return min(self.chunk_tokens, max(1, -(-num_tokens // MIN_CHUNKS)))

    @override
    def require_fit(self, *, device_type: str, soft_cap: float | None) -> None:
        if soft_cap is not None:
            msg = f"loss=linear has no soft cap, and the model's is {soft_cap}. Did you mean loss=chunked?"
            raise ConfigurationError(msg)

    @override
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        dtype = compute_dtype(hidden)
        states, weight, flat = hidden.flatten(0, -2).to(dtype), project.product_weight.to(dtype), targets.flatten()
        valid = flat != self.ignore_index
        sum_dtype = torch.promote_types(dtype, torch.float32)
        if self.z_loss_weight or not torch.is_grad_enabled():
            per_token = self._score(states, weight, flat, reduction="none").to(sum_dtype)
            objective, nats = per_token.sum(), per_token.detach().sum(dtype=torch.float64)
            if self.z_loss_weight:
                aimed = weight[flat.masked_fill(~valid, 0)]  # [N, D]
                log_z = per_token + (states * aimed).sum(-1, dtype=per_token.dtype)
                objective = objective + self.z_loss_weight * log_z.square().masked_fill(~valid, 0.0).sum()
        else:
            objective = self._score(states, weight, flat, reduction="sum").to(sum_dtype)
            nats = objective.detach().double()
        return LossTotal(objective, nats=nats, num_tokens=valid.sum())

    def _score(self, states: Tensor, weight: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
        torch_function: Any = F
        options: Any = nn.LinearCrossEntropyOptions(batch_chunk_size=self.logit_tokens(len(states)))
        return torch_function.linear_cross_entropy(
            states, weight, targets, reduction=reduction, ignore_index=self.ignore_index, options=options
        )


def linear_cross_entropy_facts(*, chunk_tokens: int = 4096) -> LossFacts:
    """Make the head's products in separate kernels, over the whole vocabulary."""
    return LossFacts(takes_shards=False, chunk_tokens=chunk_tokens)
