"""Next-token cross-entropy in sums, so that a mean can be taken over any number of micro-steps and ranks.

The z-loss keeps log Z near 0: PaLM, arXiv 2204.02311 section 5. B batch, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError


class LossTotal(NamedTuple):
    """Sums over the valid targets, each a scalar on the device: fp32, float64, int64.

    `objective` is what is differentiated; `nats` is plain cross-entropy, without a gradient, whatever was added. It is
    summed in float64, since an fp32 sum of a large batch is off in the digits that bits per byte are compared by.
    """

    objective: Tensor
    nats: Tensor
    num_tokens: Tensor


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """Score targets against logits; `z_loss_weight` times log Z squared is added per token.

    Targets equal to `ignore_index` count nowhere.
    Raises: ConfigurationError for a negative weight.
    """

    z_loss_weight: float = 0.0
    ignore_index: int = -100

    def __post_init__(self) -> None:
        if not self.z_loss_weight >= 0:
            raise ConfigurationError(f"loss.z_loss_weight={self.z_loss_weight} is not 0 or above; nearest valid: 0.")

    def __call__(self, project: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, /) -> LossTotal:
        """Sum the loss of hidden states [B, T, D], projected to logits [B, T, V], over targets [B, T]."""
        logits = project(hidden).flatten(0, -2).float()  # [B * T, V]
        flat = targets.flatten()
        valid = flat != self.ignore_index
        per_token = F.cross_entropy(logits, flat, ignore_index=self.ignore_index, reduction="none")  # 0 where ignored
        objective = per_token.sum()
        if self.z_loss_weight:
            log_z = logits.logsumexp(dim=-1)
            objective = objective + self.z_loss_weight * log_z.square().masked_fill(~valid, 0.0).sum()
        return LossTotal(objective, nats=per_token.detach().sum(dtype=torch.float64), num_tokens=valid.sum())
