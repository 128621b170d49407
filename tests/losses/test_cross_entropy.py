import math

import pytest
import torch
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy


def batch(*, num_ignored=5):
    hidden = torch.randn(2, 8, 16, requires_grad=True)
    head = torch.nn.Linear(16, 31, bias=False)
    targets = torch.randint(31, (2, 8))
    targets.view(-1)[:num_ignored] = -100
    return head, hidden, targets


def test_sums_equal_those_of_torch():
    head, hidden, targets = batch()
    total = CrossEntropy()(head, hidden, targets)
    expected = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(total.objective, expected)
    torch.testing.assert_close(total.nats.float(), expected.detach())
    assert total.num_tokens.item() == 11
    assert total.num_tokens.dtype == torch.int64


def test_without_z_loss_the_objective_is_the_nats():
    total = CrossEntropy()(*batch())
    torch.testing.assert_close(total.objective.detach(), total.nats.float())
    assert not total.nats.requires_grad


def test_z_loss_adds_the_square_of_log_z_of_valid_targets_only():
    head, hidden, targets = batch()
    total = CrossEntropy(z_loss_weight=0.1)(head, hidden, targets)
    log_z = head(hidden).logsumexp(dim=-1)[targets != -100]
    torch.testing.assert_close(total.objective - total.nats.float(), 0.1 * log_z.square().sum())


def test_nats_do_not_depend_on_the_z_loss():
    inputs = batch()
    assert torch.equal(CrossEntropy()(*inputs).nats, CrossEntropy(z_loss_weight=1.0)(*inputs).nats)


@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-3])
def test_gradients_of_parts_add_up_to_the_gradient_of_the_whole(z_loss_weight):
    head, hidden, targets = batch()
    loss = CrossEntropy(z_loss_weight=z_loss_weight)
    (whole,) = torch.autograd.grad(loss(head, hidden, targets).objective, hidden)
    parts = [
        torch.autograd.grad(loss(head, hidden[i : i + 1], targets[i : i + 1]).objective, hidden)[0] for i in (0, 1)
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)


@pytest.mark.parametrize("z_loss_weight", [0.0, 1e-3])
def test_ignored_targets_give_no_gradient(z_loss_weight):
    head, hidden, targets = batch(num_ignored=8)
    total = CrossEntropy(z_loss_weight=z_loss_weight)(head, hidden, targets)
    (gradient,) = torch.autograd.grad(total.objective, hidden)
    assert not gradient[0].any()
    assert gradient[1].any()


def test_batch_without_a_valid_target_is_zero_and_not_nan():
    head, hidden, targets = batch(num_ignored=16)
    total = CrossEntropy(z_loss_weight=1e-3)(head, hidden, targets)
    total.objective.backward()
    assert (total.objective.item(), total.nats.item(), total.num_tokens.item()) == (0.0, 0.0, 0)
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_bf16_logits_are_scored_in_fp32_and_summed_in_float64():
    hidden = torch.zeros(4, 512, 8, dtype=torch.bfloat16)
    total = CrossEntropy()(lambda hidden: hidden.new_zeros(4, 512, 256), hidden, torch.zeros(4, 512).long())
    assert total.objective.dtype == torch.float32
    assert total.nats.item() == pytest.approx(2048 * math.log(256), rel=1e-8)


def test_another_ignored_id_is_honoured():
    head, hidden, targets = batch(num_ignored=0)
    targets[:, :3] = 7
    targets[:, 3:] = 8
    assert CrossEntropy(ignore_index=7)(head, hidden, targets).num_tokens.item() == 10


def test_negative_z_loss_is_refused():
    with pytest.raises(ConfigurationError, match=r"loss\.z_loss_weight=-1\.0 is not 0 or above"):
        CrossEntropy(z_loss_weight=-1.0)
