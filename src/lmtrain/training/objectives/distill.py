"""Distillation: a student learns the next-token probabilities of a frozen teacher, by `losses/distillation.py`.

The teacher runs in each step, on every rank, on the rows that the student reads. B sequences, T tokens, N of them with
loss.
"""

from typing import final

import torch
from torch import Tensor

from lmtrain.accounting.options.parts import ObjectiveFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.losses.distillation import DistillationLoss, Teacher, TeacherScores, scores_of_logits
from lmtrain.models.base import IGNORED, LanguageModel
from lmtrain.models.head import LossTotal
from lmtrain.training.objectives.objective import Objective, ObjectiveSums
from lmtrain.training.token_batch import TokenBatch, TrainingTokens, training_tokens

DISTILLATION_FACTS = ObjectiveFacts(task="distill", takes_teacher=True)


@final
class Distillation(Objective):
    """`alpha` of the loss is the divergence from the teacher, the rest cross-entropy; `top_k` None takes all tokens."""

    def __init__(self, *, alpha: float = 1.0, temperature: float = 1.0, top_k: int | None = None) -> None:
        require_number("objective.alpha", alpha, above=0, at_most=1, usual="1")
        require_number("objective.temperature", temperature, above=0, usual="1")
        require_count("objective.top_k", top_k)
        self._alpha, self._temperature, self._top_k = alpha, temperature, top_k
        self._teacher: LanguageModel | None = None

    @property
    def task(self) -> str:
        """Return the word of the task, for messages."""
        return "distill"

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the names of the means over tokens with loss, in nats."""
        return "distillation/divergence", "distillation/cross_entropy"

    def take_teacher(self, teacher: LanguageModel) -> None:
        """Take the frozen teacher, on the device that trains."""
        self._teacher = teacher.requires_grad_(requires_grad=False).eval()

    def __call__(self, model: LanguageModel, batch: Tensor | TokenBatch, /) -> ObjectiveSums:
        """Return the sums over tokens with loss."""
        tokens = training_tokens(batch)
        loss = DistillationLoss(
            alpha=self._alpha, temperature=self._temperature, teacher=self._online(model.vocab_size, tokens)
        )
        total: LossTotal = model(tokens.inputs, tokens.targets, loss, tokens.documents)
        objective, count = total.objective.detach().double(), total.num_tokens.double()
        divergence = (objective - (1 - self._alpha) * total.nats) / (self._alpha * self._temperature**2)
        return ObjectiveSums(
            objective=total.objective,
            nats=objective,
            num_tokens=total.num_tokens,
            further=torch.stack([count, count, divergence, total.nats]),
        )

    def _online(self, vocab_size: int, tokens: TrainingTokens) -> Teacher:
        """Return the teacher's scores of tokens with loss: its hidden states now, their logits chunk by chunk."""
        teacher = self._teacher
        assert teacher is not None, "take_teacher comes first"
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            hidden = teacher.hidden_states(tokens.inputs, tokens.documents)[tokens.targets != IGNORED]  # [N, D]

        def score(place: slice) -> TeacherScores:
            with torch.no_grad():
                logits = teacher.logits(hidden[place])[:, :vocab_size]  # without a larger padding
                return scores_of_logits(logits, temperature=self._temperature, top_k=self._top_k)

        return score
