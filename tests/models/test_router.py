"""The reference is transformers' own load-balancing loss and routers."""

import pytest
import torch

from lmtrain.models.mixture_of_experts import load_balance_loss, route, router_z_loss

SCORES = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_experts_per_token", [1, 2, 8])
def test_the_load_balance_loss_equals_that_of_transformers(num_experts_per_token):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = route(SCORES, num_experts_per_token=num_experts_per_token, normalize_weights=True)
    expected = load_balancing_loss_func((SCORES,), num_experts=8, top_k=num_experts_per_token)
    torch.testing.assert_close(load_balance_loss(routing), expected)


def test_the_load_balance_loss_has_the_gradient_of_transformers():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    ours, theirs = SCORES.clone().requires_grad_(), SCORES.clone().requires_grad_()
    load_balance_loss(route(ours, num_experts_per_token=2, normalize_weights=True)).backward()
    load_balancing_loss_func((theirs,), num_experts=8, top_k=2).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_normalized_weights_are_a_softmax_over_the_chosen():
    routing = route(SCORES, num_experts_per_token=2, normalize_weights=True)
    torch.testing.assert_close(routing.weights, SCORES.gather(-1, routing.experts).softmax(dim=-1))


def test_other_weights_are_a_softmax_over_all():
    routing = route(SCORES, num_experts_per_token=2, normalize_weights=False)
    torch.testing.assert_close(routing.weights, SCORES.softmax(dim=-1).topk(2).values)


def test_perfect_balance_costs_as_much_as_there_are_experts_a_token():
    balanced = route(10 * torch.eye(4).repeat(3, 1), num_experts_per_token=1, normalize_weights=False)
    assert load_balance_loss(balanced).item() == pytest.approx(1.0)
    crowded = route(torch.tensor([[50.0, 0, 0, 0]]).repeat(6, 1), num_experts_per_token=1, normalize_weights=False)
    assert load_balance_loss(crowded).item() == pytest.approx(4.0)


def test_the_z_loss_is_the_mean_square_of_log_z():
    assert router_z_loss(torch.zeros(3, 8)).item() == pytest.approx(torch.tensor(8.0).log().item() ** 2)
