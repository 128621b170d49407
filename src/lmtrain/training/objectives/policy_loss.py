"""Losses of written answers: their advantages over their group, and what a token's or an answer's ratio is worth.

The ratio is that of a probability now to that under the weights that wrote it. Names are TRL's: dapo (arXiv
2503.14476), grpo (2402.03300), bnpo (a mean over a micro-batch), dr_grpo (2503.20783), cispo (2506.13585), sapo
(2511.20347), luspo (2602.05261), vespo (2602.10693), and rloo (2402.14740), which has a trainer there. TRL's
`scale_rewards=batch` divides by the spread of a micro-batch and would depend on its size; it is not here. B answers,
T tokens, G answers of a group.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

import torch
from torch import Tensor

from lmtrain.accounting.options.ranges import require_number
from lmtrain.errors import wrong

LossType = Literal["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo", "rloo"]
SMALLEST_SPREAD: Final = 1e-4  # TRL's, added to a group's standard deviation
SAPO_TEMPERATURES: Final = (1.0, 1.05)  # of answers above their group, and of the others
VESPO_POWERS: Final = ((2.0, 3.0), (3.0, 2.0))  # k and lambda, for the same two
LARGEST_LOG: Final = 20.0  # of a ratio in vespo; the smallest is log 1e-8


class PolicySums(NamedTuple):
    """The loss [] as a sum, its divisor [], and per answer [B] the means of divergence and of clipped tokens."""

    loss: Tensor
    divisor: Tensor
    divergence: Tensor
    clipped: Tensor


def group_advantages(
    rewards: Tensor, *, num_generations: int, scales: bool, leaves_one_out: bool = False
) -> tuple[Tensor, Tensor]:
    """Return rewards [B] less the mean of their groups, over the spread where it `scales`, and spreads [B / G].

    With `leaves_one_out` the mean is that of the others. A reward that failed is NaN: its advantage is 0, and the
    mean and the spread are those of the others.
    """
    grouped = rewards.view(-1, num_generations)
    scored = grouped.isfinite()
    num_others = scored.sum(dim=-1) - 1
    shifted = grouped - grouped.nan_to_num(-torch.inf).amax(dim=-1, keepdim=True)  # equal rewards: exactly 0
    advantages = (shifted - shifted.nanmean(dim=-1, keepdim=True)).where(scored, 0.0)
    spreads = (advantages.square().sum(dim=-1) / num_others.clamp(min=1)).sqrt()
    if leaves_one_out:
        advantages = advantages * (1 + 1 / num_others.clamp(min=1))[:, None]
    if scales:
        advantages = advantages / (spreads + SMALLEST_SPREAD)[:, None]
    return advantages.flatten(), spreads


@final
@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A) a token, and beta times the divergence from a reference.

    r is a ratio for each token, or, with `importance_level` sequence (GSPO, arXiv 2507.18071), its geometric mean over
    an answer; `rloo` and `vespo` have the product. `delta` also bounds r where A is negative. `cispo`, `sapo` and
    `vespo` weigh the tokens by other functions of r. The divergence is Schulman's estimate exp(d) - d - 1, d the
    reference's log-probability less the model's. `epsilon_high` None is `epsilon`.
    """

    beta: float
    epsilon: float
    epsilon_high: float | None
    loss_type: LossType
    num_new_tokens: int
    importance_level: Literal["token", "sequence"] = "token"
    delta: float | None = None

    def __post_init__(self) -> None:
        require_number("objective.beta", self.beta, at_least=0, usual="0")
        require_number("objective.epsilon", self.epsilon, above=0, usual="0.2")
        require_number("objective.epsilon_high", self.epsilon_high, above=0, usual="0.2")
        require_number("objective.delta", self.delta, above=1 + self._high, usual="4")
        if self.loss_type == "cispo" and self.epsilon_high is None:
            instead = "objective.epsilon_high=5"
            raise wrong("objective.epsilon_high", "the largest ratio with objective.loss_type=cispo", None, instead)

    @property
    def _high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    def __call__(
        self,
        log_probs: Tensor,
        mask: Tensor,
        *,
        advantages: Tensor,
        old: Tensor | None,
        reference: Tensor | None,
        num_answers: Tensor | None = None,
    ) -> PolicySums:
        """Sum over tokens [B, T] where `mask` is set; `old` None: the weights have not moved since they wrote.

        `num_answers` is the divisor of losses by answers; None counts those with a token.
        """
        ratio = self._ratio(log_probs - (log_probs.detach() if old is None else old), mask)
        gains = advantages[:, None]
        loss = self._loss(ratio, gains, log_probs)
        divergence = torch.zeros_like(log_probs)
        if reference is not None:
            apart = reference - log_probs
            divergence = torch.exp(apart) - apart - 1
            if self.loss_type != "rloo":  # which has it in its rewards
                loss = loss + self.beta * divergence
        low, high = self._bounds()
        clipped = ((ratio < low) & (gains < 0)) | ((ratio > high) & (gains > 0))
        total, divisor = self._summed(loss, mask, mask.any(dim=-1).sum() if num_answers is None else num_answers)
        return PolicySums(total, divisor, *(_means(one.detach(), mask) for one in (divergence, clipped.float())))

    def _ratio(self, log_ratio: Tensor, mask: Tensor) -> Tensor:
        """Return ratios [B, T] of tokens, or [B, 1] of answers."""
        if self.loss_type == "vespo":
            summed = (log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG) * mask).sum(dim=-1, keepdim=True)
            return summed.clamp(math.log(1e-8), LARGEST_LOG).exp()
        if self.loss_type == "rloo":
            return (log_ratio * mask).sum(dim=-1, keepdim=True).exp()
        if self.importance_level == "sequence":
            log_ratio = _means(log_ratio, mask)[:, None]
        return log_ratio.exp()

    def _loss(self, ratio: Tensor, gains: Tensor, log_probs: Tensor) -> Tensor:
        """Return the loss [B, T] of tokens or [B, 1] of answers, from ratios and advantages [B, 1]."""
        if self.loss_type == "cispo":
            return -ratio.clamp(max=self._high).detach() * gains * log_probs
        if self.loss_type == "sapo":
            temperature = torch.where(gains > 0, *SAPO_TEMPERATURES)
            return -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * gains
        if self.loss_type == "vespo":
            weight, (above, others) = ratio.detach(), VESPO_POWERS
            power, fading = (torch.where(gains >= 0, *each) for each in zip(above, others, strict=True))
            return -torch.exp(fading + power * weight.log() - fading * weight) * gains * log_probs
        bounded = ratio if self.delta is None else ratio.clamp(max=self.delta)
        return -torch.min(bounded * gains, ratio.clamp(*self._bounds()) * gains)

    def _bounds(self) -> tuple[float, float]:
        """Return the ratios between which nothing is clipped."""
        if self.loss_type in ("sapo", "vespo"):
            return 0.0, math.inf
        return (0.0, self._high) if self.loss_type == "cispo" else (1 - self.epsilon, 1 + self._high)

    def _summed(self, loss: Tensor, mask: Tensor, num_answers: Tensor) -> Sequence[Tensor]:
        """Return the loss of tokens [B, T] as a sum [], and its divisor []."""
        total = (loss * mask).sum()
        if self.loss_type == "bnpo":
            return total / mask.sum().clamp(min=1), mask.any().long()
        if self.loss_type == "dr_grpo":
            return total, num_answers * self.num_new_tokens
        if self.loss_type in ("dapo", "cispo", "vespo"):
            return total, mask.sum()
        return total if self.loss_type == "luspo" else _means(loss, mask).sum(), num_answers


def _means(values: Tensor, mask: Tensor) -> Tensor:
    """Return each answer's mean [B] over its tokens [B, T], 0 without any."""
    return (values * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
