"""Distillation: the divergence of a student's next-token probabilities from a teacher's, next to cross-entropy.

alpha T^2 KL(teacher || student) + (1 - alpha) cross-entropy, with both softened by the temperature T (Hinton et al.,
arXiv 1503.02531 section 2). Of a teacher's k likeliest tokens, all others together are one more outcome on both sides:
mass that leaves the k still counts. Scored in chunks, as NeMo Automodel does (components/loss/kd_loss.py).
N tokens, C of them in a chunk, D width of the student, V vocabulary, K tokens known of the teacher.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtrain.losses.chunked import ChunkedCrossEntropy, Rule, chunked_total
from lmtrain.models.head import LossTotal, OutputHead
from lmtrain.models.own_model import GivenLogits


class TeacherScores(NamedTuple):
    """Log-probabilities [C, K] at the temperature, of the tokens `ids` int64 [C, K]; None: of the first K of all."""

    log_probs: Tensor
    ids: Tensor | None = None


Teacher = Callable[[slice], TeacherScores]  # the scores of some of the N tokens
CHUNKS: Final = ChunkedCrossEntropy()


def scores_of_logits(logits: Tensor, *, temperature: float, top_k: int | None) -> TeacherScores:
    """Return the scores of the `top_k` likeliest tokens of logits [C, V], None or V: of all."""
    log_probs = F.log_softmax(_exact(logits) / temperature, dim=-1)
    if top_k is None or top_k >= logits.shape[-1]:
        return TeacherScores(log_probs)
    return TeacherScores(*log_probs.topk(top_k, dim=-1))


def forward_kl(logits: Tensor, teacher: TeacherScores, *, temperature: float) -> Tensor:
    """Return KL(teacher || student) [C] from the student's logits [C, V], all outside the known tokens as one."""
    known, num_known = teacher.log_probs, teacher.log_probs.shape[-1]
    scores = logits / temperature
    if teacher.ids is None:
        scores = scores[:, :num_known]  # a vocabulary may be padded differently
        return F.kl_div(F.log_softmax(scores, dim=-1), known, reduction="none", log_target=True).sum(dim=-1)
    log_probs = F.log_softmax(scores, dim=-1)
    of_known = F.kl_div(log_probs.gather(1, teacher.ids), known, reduction="none", log_target=True).sum(dim=-1)
    if num_known == log_probs.shape[-1]:
        return of_known
    others = log_probs.scatter(1, teacher.ids, -torch.inf).logsumexp(dim=-1)
    rest = (1 - known.exp().sum(dim=-1)).clamp(min=0)
    return of_known + torch.xlogy(rest, rest) - rest * others


def _exact(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@final
@dataclass(frozen=True, kw_only=True)
class DistillationLoss:
    """Score hidden states [N, D] by `teacher`; the objective is the weighted sum, the nats are cross-entropy."""

    alpha: float
    temperature: float
    teacher: Teacher
    ignore_index: int = -100

    def __call__(self, project: OutputHead, hidden: Tensor, targets: Tensor, /) -> LossTotal:
        """Sum over targets [B, T] that are not ignored, by hidden states [B, T, D]; the teacher scores these alone."""
        valid = targets != self.ignore_index
        hidden, targets = hidden[valid], targets[valid]
        if isinstance(cast("object", project), GivenLogits):
            nats, objective = self._terms(_exact(project(hidden)), targets, slice(0, len(targets)))
            num_tokens = valid.sum()
            return LossTotal(objective.sum(), nats=nats.detach().sum(dtype=torch.float64), num_tokens=num_tokens)
        num_scored = 0

        def scores(
            logits: Tensor, aims: Tensor, rule: Rule, *, gradients: bool
        ) -> tuple[Tensor, Tensor, Tensor | None]:
            """Return nats, what the objective has beyond them, and its gradient of logits: as `score_logits`."""
            nonlocal num_scored
            place, num_scored = slice(num_scored, num_scored + len(aims)), num_scored + len(aims)
            with torch.set_grad_enabled(gradients):
                raw = logits.detach().requires_grad_(gradients)
                bent = _exact(raw)
                if rule.soft_cap is not None:
                    bent = torch.tanh(bent / rule.soft_cap) * rule.soft_cap
                nats, objective = self._terms(bent, aims, place)
                beyond = (objective - nats).sum().detach()
                if not gradients:
                    return nats, beyond, None
                (of_logits,) = torch.autograd.grad(objective.sum() * rule.rounding.gradient_scale, raw)
            return nats.detach(), beyond, of_logits.to(rule.rounding.gradient_dtype or logits.dtype)

        return chunked_total(CHUNKS, project, hidden, targets, scores=scores)

    def _terms(self, logits: Tensor, targets: Tensor, place: slice) -> tuple[Tensor, Tensor]:
        """Return cross-entropy [C] and the objective [C] of logits [C, V]."""
        nats = F.cross_entropy(logits, targets, reduction="none")
        divergence = forward_kl(logits, self.teacher(place), temperature=self.temperature)
        return nats, self.alpha * self.temperature**2 * divergence + (1 - self.alpha) * nats
