import importlib.machinery
import sys
import types
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from torch.nn import functional as F

from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.losses.liger import LigerCrossEntropy
from lmtrain.losses.linear import LinearCrossEntropy
from lmtrain.losses.log_probs import SequenceLogProbs, TokenLogProbs
from tests.adapters.test_low_rank import small
from tests.interop.hugging_face import tokens
from tests.losses.loss_checks import batch, cases, check_against_plain


def small_batch(*, num_ignored=5):
    hidden = torch.randn(2, 8, 16, requires_grad=True)
    head = torch.nn.Linear(16, 31, bias=False)
    targets = torch.randint(31, (2, 8))
    targets.view(-1)[:num_ignored] = -100
    return head, hidden, targets


def test_sums_equal_those_of_torch():
    head, hidden, targets = small_batch()
    total = CrossEntropy()(head, hidden, targets)
    expected = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total.objective, expected)
    torch.testing.assert_close(total.nats.float(), expected.detach())
    assert total.num_tokens.item() == 11
    assert total.num_tokens.dtype == torch.int64


def test_z_loss_adds_the_square_of_log_z_of_valid_targets_only():
    head, hidden, targets = small_batch()
    total = CrossEntropy(z_loss_weight=0.1)(head, hidden, targets)
    log_z = head(hidden).logsumexp(dim=-1)[targets != -100]
    torch.testing.assert_close(total.objective - total.nats.float(), 0.1 * log_z.square().sum())


@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-3])
def test_gradients_of_parts_add_up_to_the_gradient_of_the_whole(z_loss_weight):
    head, hidden, targets = small_batch()
    loss = CrossEntropy(z_loss_weight=z_loss_weight)
    (whole,) = torch.autograd.grad(loss(head, hidden, targets).objective, hidden)
    parts = [
        torch.autograd.grad(loss(head, hidden[i : i + 1], targets[i : i + 1]).objective, hidden)[0] for i in (0, 1)
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)


def test_batch_without_a_valid_target_is_zero_and_not_nan():
    head, hidden, targets = small_batch(num_ignored=16)
    total = CrossEntropy(z_loss_weight=1e-3)(head, hidden, targets)
    total.objective.backward()
    assert (total.objective.item(), total.nats.item(), total.num_tokens.item()) == (0.0, 0.0, 0)
    assert hidden.grad is not None
    assert not hidden.grad.any()


HAS_IT = hasattr(F, "linear_cross_entropy")
needs_torch = pytest.mark.skipif(not HAS_IT, reason="torch before 2.13 has no linear_cross_entropy")


@needs_torch
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_and_gradients_are_those_of_the_plain_loss(dtype):
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(cases(soft_caps=(None,)))
    def check(case):
        options, z_loss_weight = case
        loss = LinearCrossEntropy(z_loss_weight=z_loss_weight, chunk_tokens=7)
        check_against_plain(loss, batch(**options, dtype=dtype), values=1e-5 if dtype == torch.float32 else None)

    check()


class Output(NamedTuple):
    loss: torch.Tensor
    z_loss: torch.Tensor


def fused(states, weight, targets, *, ignore_index, lse_square_scale, reduction, softcap, return_z_loss, accum_dtype):
    """Compute what Liger documents: the z-loss is part of the loss, and returned beside it when asked for."""
    assert (states.ndim, weight.ndim, targets.ndim) == (2, 2, 1)
    assert reduction == "sum"
    assert accum_dtype == torch.float32
    scores = F.linear(states, weight).float()
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    z_loss = lse_square_scale * scores.logsumexp(-1).square().masked_fill(targets == ignore_index, 0).sum()
    loss = F.cross_entropy(scores, targets, ignore_index=ignore_index, reduction="sum") + z_loss
    return Output(loss, z_loss) if return_z_loss else loss


@pytest.fixture
def package(monkeypatch):
    for name in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.functional"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        module.liger_fused_linear_cross_entropy = fused
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("z_loss_weight", [0.0, 0.1])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_it_is_called_as_documented(package, z_loss_weight, soft_cap):
    check_against_plain(LigerCrossEntropy(z_loss_weight=z_loss_weight), batch(soft_cap=soft_cap))


def test_each_sequence_has_the_sum_of_its_valid_targets() -> None:
    model, ids = small(), tokens()
    targets = ids[:, 1:].clone()
    targets[0, :5] = targets[1, 9:] = -100
    total = model(ids[:, :-1], targets, SequenceLogProbs())
    chosen = model(ids[:, :-1]).double().log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    expected = torch.stack([chosen[0, 5:].sum(), chosen[1, :9].sum()])
    torch.testing.assert_close(total.objective.double(), expected, rtol=1e-6, atol=1e-5)  # scored in fp32
    assert int(total.num_tokens) == (targets != -100).sum()
    torch.testing.assert_close(total.nats, -expected.sum(), rtol=1e-6, atol=1e-5)


def test_each_valid_target_has_its_log_probability_at_the_temperature() -> None:
    model, ids = small(), tokens()
    targets = ids[:, 1:].clone()
    targets[0, :5] = -100
    total = model(ids[:, :-1], targets, TokenLogProbs(temperature=0.7))
    logits = model(ids[:, :-1]).double() / 0.7
    expected = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    expected[0, :5] = 0
    torch.testing.assert_close(total.objective.double(), expected, rtol=1e-6, atol=1e-5)  # scored in fp32
    assert int(total.num_tokens) == (targets != -100).sum()
    total.objective.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
