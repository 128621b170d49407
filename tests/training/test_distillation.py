"""Distillation against torch's divergence in double precision."""

import pytest
import torch
from torch.nn import functional as F

from lmtrain.losses.distillation import TeacherScores, forward_kl, scores_of_logits
from lmtrain.models.own_model import LogitsModel
from lmtrain.training.objectives.distill import Distillation
from lmtrain.training.token_batch import TokenBatch, training_tokens
from tests.adapters.test_low_rank import small
from tests.training.test_preferences import batch

VOCAB = 50


def logits(seed: int) -> torch.Tensor:
    return torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3


def divergence(student: torch.Tensor, teacher: torch.Tensor, *, temperature: float) -> torch.Tensor:
    """Return torch's KL of each row."""
    theirs, ours = (F.log_softmax(one / temperature, dim=-1) for one in (teacher, student))
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)


@pytest.mark.parametrize("top_k", [None, VOCAB, 10 * VOCAB])
def test_all_tokens_give_torch_s_divergence(top_k: int | None) -> None:
    known = scores_of_logits(logits(0), temperature=2.0, top_k=top_k)
    found = forward_kl(logits(1), known, temperature=2.0)
    torch.testing.assert_close(found, divergence(logits(1), logits(0), temperature=2.0))


def test_other_tokens_are_one_outcome_on_both_sides() -> None:
    known = scores_of_logits(logits(0), temperature=1.5, top_k=4)
    assert known.ids is not None
    student, teacher = ((one / 1.5).softmax(-1) for one in (logits(1), logits(0)))
    merged = []
    for row, ids in enumerate(known.ids):
        others = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, ids, value=False)
        merged.append([torch.cat([one[row, ids], one[row, others].sum().view(1)]).log() for one in (student, teacher)])
    ours, theirs = (torch.stack([pair[side] for pair in merged]) for side in (0, 1))
    expected = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)
    torch.testing.assert_close(forward_kl(logits(1), known, temperature=1.5), expected)


@pytest.mark.parametrize("top_k", [1, 8, None])
def test_a_student_like_its_teacher_has_neither_loss_nor_gradient(top_k: int | None) -> None:
    student = logits(0).requires_grad_()
    known = scores_of_logits(logits(0), temperature=2.0, top_k=top_k)
    loss = forward_kl(student, known, temperature=2.0).sum()
    loss.backward()
    assert student.grad is not None
    assert abs(loss.item()) < 1e-12
    assert student.grad.abs().max() < 1e-12


@pytest.mark.parametrize("wraps", [False, True])
def test_loss_and_gradients_of_a_step_are_torch_s(wraps: bool) -> None:
    data, model, teacher = batch(), small().double(), small().double()
    teacher.initialize_weights(torch.Generator().manual_seed(1))
    objective = Distillation(alpha=0.3, temperature=2.0)
    objective.take_teacher(teacher)
    trained = LogitsModel(model, vocab_size=model.vocab_size, max_context_tokens=64) if wraps else model
    found = objective(trained, data)
    found.objective.backward()
    gradients = [one.grad for one in model.parameters()]
    model.zero_grad()
    inputs, targets, _ = training_tokens(data)
    valid = targets != -100
    student, scores = model(inputs)[valid], teacher(inputs)[valid].detach()
    apart = divergence(student, scores, temperature=2.0).sum()
    nats = F.cross_entropy(student, targets[valid], reduction="sum")
    expected = 0.3 * 4 * apart + 0.7 * nats
    expected.backward()
    torch.testing.assert_close(found.objective, expected)
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)
    counted = [valid.sum().double(), valid.sum().double(), apart.detach(), nats.detach()]
    torch.testing.assert_close(found.further, torch.stack(counted))


def test_a_row_without_loss_adds_nothing_and_a_padded_vocabulary_does_not_matter() -> None:
    data, model = batch(), small()
    objective = Distillation(alpha=1.0)
    objective.take_teacher(small())
    empty = data._replace(loss_mask=torch.zeros_like(data.loss_mask))  # pyright: ignore[reportArgumentType]
    sums = objective(model, TokenBatch(*empty))
    sums.objective.backward()
    assert (sums.objective.item(), int(sums.num_tokens)) == (0.0, 0)
    fewer = scores_of_logits(logits(0)[:, :40], temperature=1.0, top_k=None)
    expected = divergence(logits(1)[:, :40], logits(0)[:, :40], temperature=1.0)
    torch.testing.assert_close(forward_kl(logits(1), TeacherScores(fewer.log_probs), temperature=1.0), expected)
