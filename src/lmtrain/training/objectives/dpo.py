"""Direct preference optimization (arXiv 2305.18290): the preferred answer gains on the other one against a reference.

-log sigmoid(beta ((log p(chosen) - log r(chosen)) - (log p(rejected) - log r(rejected)))) of each pair, eq. 7, with
log-probabilities summed over an answer's tokens; the reference r is the run's starting model. B sequences,
P = B / 2 pairs, the preferred answer first.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.models.base import LanguageModel
from lmtrain.models.head import LossTotal
from lmtrain.training.objectives.objective import Objective, ObjectiveSums
from lmtrain.training.objectives.reference import LOG_PROBS
from lmtrain.training.token_batch import TokenBatch, training_tokens


def none() -> None:
    """Minimise the loss of next tokens."""


DIRECT_PREFERENCE_FACTS: Final = ObjectiveFacts(task="dpo", rows_together=2, scores_ahead=True)


@final
@dataclass(frozen=True, kw_only=True)
class DirectPreference(Objective):
    """`beta` weighs the distance from the reference; `label_smoothing` is the share of pairs taken to be swapped."""

    task: ClassVar[str] = "dpo"
    beta: float
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_number("objective.beta", self.beta, above=0, usual="0.1")
        require_number("objective.label_smoothing", self.label_smoothing, at_least=0, below=0.5, usual="0")

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the means over pairs."""
        return tuple(f"preference/{name}" for name in ("chosen_reward", "rejected_reward", "accuracy", "margin"))

    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Return the sums over the batch's pairs."""
        assert isinstance(batch, TokenBatch)
        assert batch.reference is not None, "the data of a preference comes with its reference"
        inputs, targets, documents = training_tokens(batch)
        total: LossTotal = model(inputs, targets, LOG_PROBS, documents)
        return self.of_pairs(total, batch.reference)

    def of_pairs(self, total: LossTotal, reference: Tensor) -> ObjectiveSums:
        """Return the sums over pairs, from log-probabilities [B] of sequences by the model and by the reference."""
        rewards = self.beta * (total.objective - reference)
        chosen, rejected = rewards.view(-1, 2).unbind(dim=-1)  # [P] each
        margin = chosen - rejected
        loss = -F.logsigmoid(margin) * (1 - self.label_smoothing) - F.logsigmoid(-margin) * self.label_smoothing
        pairs = torch.ones_like(margin)
        sums = (pairs, pairs, chosen, rejected, (margin > 0).float(), margin)
        return ObjectiveSums(
            objective=loss.sum(),
            nats=loss.detach().sum(dtype=torch.float64),
            num_tokens=total.num_tokens,
            further=torch.stack([one.detach().sum(dtype=torch.float64) for one in sums]),
        )
