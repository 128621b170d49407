"""Log-probabilities of targets, one by one or summed over each sequence.

B batch, T tokens, D width, V vocabulary, N valid targets.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lmtrain.models.head import LossTotal, OutputHead


@final
@dataclass(frozen=True, kw_only=True)
class SequenceLogProbs:
    """Build the logits [B, T, V] and score them in fp32; the objective is [B], a sequence each, and no scalar."""

    ignore_index: int = -100

    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        """Sum log-probabilities of targets [B, T] by hidden states [B, T, D]: `objective` [B]."""
        logits = project(hidden).flatten(0, -2).float()  # [B * T, V]
        nats = F.cross_entropy(logits, targets.flatten(), ignore_index=self.ignore_index, reduction="none")
        valid = targets != self.ignore_index
        of_sequences = -nats.view_as(targets).sum(dim=-1)
        return LossTotal(of_sequences, nats=nats.detach().sum(dtype=torch.float64), num_tokens=valid.sum())


@final
@dataclass(frozen=True, kw_only=True)
class TokenLogProbs:
    """Build the logits [N, V] of valid targets alone; the objective is [B, T], 0 at the others, and no scalar."""

    temperature: float = 1.0
    ignore_index: int = -100

    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        """Score targets [B, T] by hidden states [B, T, D] in fp32: `objective` [B, T]."""
        valid = targets != self.ignore_index
        logits = project(hidden[valid]).float() / self.temperature  # [N, V]
        nats = F.cross_entropy(logits, targets[valid], reduction="none")
        log_probs = torch.zeros(targets.shape, dtype=nats.dtype, device=nats.device).masked_scatter(valid, -nats)
        return LossTotal(log_probs, nats=nats.detach().sum(dtype=torch.float64), num_tokens=valid.sum())
