"""Next-token cross-entropy from logits of the whole batch: the plainest loss, and the reference of the others.

B batch, T tokens, D width, V vocabulary.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.accounting.options.parts import LossFacts
from lmtrain.losses.base import TokenLoss
from lmtrain.models.head import LossTotal, OutputHead


@final
@dataclass(frozen=True, kw_only=True)
class CrossEntropy(TokenLoss):
    """Build the logits [B, T, V] and score them in fp32 or better."""

    @override
    def __call__(
        self, project: OutputHead, hidden: Float[Tensor, "B T D"], targets: Int[Tensor, "B T"], /
    ) -> LossTotal:
        logits = project(hidden).flatten(0, -2)  # [B * T, V]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        flat = targets.flatten()
        valid = flat != self.ignore_index
        per_token = F.cross_entropy(logits, flat, ignore_index=self.ignore_index, reduction="none")  # 0 where ignored
        objective = per_token.sum()
        if self.z_loss_weight:
            log_z = logits.logsumexp(dim=-1)
            objective = objective + self.z_loss_weight * log_z.square().masked_fill(~valid, 0.0).sum()
        return LossTotal(objective, nats=per_token.detach().sum(dtype=torch.float64), num_tokens=valid.sum())


def cross_entropy_facts(*, z_loss_weight: float = 0.0) -> LossFacts:
    """Hold all scores; the z-loss has two more tensors of their size."""
    return LossFacts(num_eager_tensors=5 if z_loss_weight else 3)
