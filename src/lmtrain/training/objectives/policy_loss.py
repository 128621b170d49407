"""Group relative policy optimization: advantages within groups of answers, and the clipped loss of their tokens.

GRPO (arXiv 2402.03300 section 4.1), with TRL's normalizations and defaults: `dapo` (arXiv 2503.14476) divides by the
tokens of the whole step, `grpo` takes the mean of answers' means, `bnpo` divides by the tokens of a micro-batch,
`dr_grpo` (arXiv 2503.20783) by a constant. B answers in groups of G, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

import torch
from torch import Tensor

LossType = Literal["dapo", "grpo", "bnpo", "dr_grpo"]
SMALLEST_SPREAD: Final = 1e-4  # TRL's, added to a group's standard deviation


class Groups(NamedTuple):
    """Advantages [B], the standard deviations [B / G] of groups' rewards, and how many groups have none."""

    advantages: Tensor
    spreads: Tensor

    @property
    def is_equal(self) -> Tensor:
        """Return which groups have equal rewards: nothing is learned from them, bool [B / G]."""
        return self.spreads.abs() < 1e-8


class PolicySums(NamedTuple):
    """The loss [] as a sum, its divisor [], and per answer [B] the means of divergence and of clipped tokens."""

    loss: Tensor
    divisor: Tensor
    divergence: Tensor
    clipped: Tensor


def group_advantages(rewards: Tensor, *, num_generations: int, scales: bool) -> Groups:
    """Return rewards [B] less the mean of their groups, over the spread where it `scales`."""
    grouped = rewards.view(-1, num_generations)
    spreads = grouped.std(dim=-1)
    advantages = grouped - grouped.mean(dim=-1, keepdim=True)
    if scales:
        advantages = advantages / (spreads + SMALLEST_SPREAD)[:, None]
    return Groups(advantages.flatten(), spreads)


@final
@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) a token, and beta times the divergence from a reference.

    r is the ratio of a token's probability to that under the weights that wrote it. The divergence is Schulman's
    estimate exp(d) - d - 1, d the reference's log-probability less the model's.
    """

    beta: float
    epsilon: float
    epsilon_high: float
    loss_type: LossType
    num_new_tokens: int

    def __call__(
        self, log_probs: Tensor, mask: Tensor, *, advantages: Tensor, old: Tensor | None, reference: Tensor | None
    ) -> PolicySums:
        """Sum over tokens [B, T] where `mask` is set; `old` None: the weights have not moved since they wrote."""
        ratio = torch.exp(log_probs - (log_probs.detach() if old is None else old))
        gains = advantages[:, None]
        loss = -torch.min(ratio * gains, ratio.clamp(1 - self.epsilon, 1 + self.epsilon_high) * gains)
        divergence = torch.zeros_like(log_probs)
        if reference is not None:
            apart = reference - log_probs
            divergence = torch.exp(apart) - apart - 1
            loss = loss + self.beta * divergence
        clipped = ((ratio < 1 - self.epsilon) & (gains < 0)) | ((ratio > 1 + self.epsilon_high) & (gains > 0))
        total, divisor = self._summed(loss, mask)
        return PolicySums(total, divisor, *(_means(one.detach(), mask) for one in (divergence, clipped.float())))

    def _summed(self, loss: Tensor, mask: Tensor) -> Sequence[Tensor]:
        """Return the loss of tokens [B, T] as a sum [], and its divisor []."""
        num_answers = mask.any(dim=-1).sum()
        total = (loss * mask).sum()
        if self.loss_type == "bnpo":
            return total / mask.sum().clamp(min=1), mask.any().long()
        if self.loss_type == "dr_grpo":
            return total, num_answers * self.num_new_tokens
        if self.loss_type == "dapo":
            return total, mask.sum()
        return _means(loss, mask).sum(), num_answers


def _means(values: Tensor, mask: Tensor) -> Tensor:
    """Return each answer's mean [B] over its tokens [B, T], 0 without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
