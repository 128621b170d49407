"""The references are transformers' sparse blocks; models of experts as a whole are compared in tests/interop."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.models.mixture_of_experts import Experts, MixtureOfExperts

NUM_EXPERTS, WIDTH, EXPERT_WIDTH = 6, 16, 24


def build(num_experts_per_token=2, **settings):
    experts = Experts(num_experts=NUM_EXPERTS, num_experts_per_token=num_experts_per_token, **settings)
    layer = MixtureOfExperts(WIDTH, EXPERT_WIDTH, experts=experts)
    layer.initialize_weights(torch.Generator().manual_seed(0), std=0.3, output_std=0.3)
    return layer


def tokens(num=10):
    return torch.randn(2, num, WIDTH, generator=torch.Generator().manual_seed(1))


def mixtral(layer):
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=EXPERT_WIDTH,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=layer.experts.num_experts_per_token,
    )
    return with_weights(MixtralSparseMoeBlock(config), layer)


def olmoe(layer):
    from transformers import OlmoeConfig
    from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock

    config = OlmoeConfig(
        hidden_size=WIDTH,
        intermediate_size=EXPERT_WIDTH,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=layer.experts.num_experts_per_token,
        norm_topk_prob=layer.experts.normalize_weights,
    )
    return with_weights(OlmoeSparseMoeBlock(config), layer)


def with_weights(reference, layer):
    reference.config = None
    reference.experts.config._experts_implementation = "eager"
    with torch.no_grad():
        reference.gate.weight.copy_(layer.router.weight)
        reference.experts.gate_up_proj.copy_(layer.gate_up)
        reference.experts.down_proj.copy_(layer.down)
    return reference


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({}, mixtral),
        ({"num_experts_per_token": 1}, mixtral),
        ({"num_experts_per_token": 6}, mixtral),
        ({"normalize_weights": False}, olmoe),
        ({"normalize_weights": False, "num_experts_per_token": 3}, olmoe),
    ],
)
def test_outputs_and_gradients_equal_those_of_transformers(settings, reference):
    layer = build(**settings)
    theirs = reference(layer)
    ours_in, theirs_in = tokens().requires_grad_(), tokens().requires_grad_()
    made, _ = layer(ours_in)
    expected = theirs(theirs_in)
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-5)  # fp32, another order of sums
    made.square().sum().backward()
    expected.square().sum().backward()
    pairs = [
        (ours_in.grad, theirs_in.grad),
        (layer.router.weight.grad, theirs.gate.weight.grad),
        (layer.gate_up.grad, theirs.experts.gate_up_proj.grad),
        (layer.down.grad, theirs.experts.down_proj.grad),
    ]
    for ours, expected_gradient in pairs:
        torch.testing.assert_close(ours, expected_gradient, atol=1e-5, rtol=1e-4)


def test_no_token_is_dropped_though_all_want_one_expert():
    layer = build(num_experts_per_token=1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[3] = 1.0
    x = tokens().abs()
    gate, up = (x @ layer.gate_up[3].T).chunk(2, dim=-1)
    torch.testing.assert_close(layer(x)[0], (torch.nn.functional.silu(gate) * up) @ layer.down[3].T)


def test_the_order_of_tokens_does_not_matter():
    layer, x = build(), tokens()
    torch.testing.assert_close(layer(x.flip(1))[0], layer(x)[0].flip(1))


def test_the_penalty_is_a_sum_over_tokens_of_both_losses():
    from lmtrain.models.mixture_of_experts import load_balance_loss, route, router_z_loss

    layer, x = build(load_balance_weight=0.5, router_z_weight=0.25), tokens()
    scores = layer.router(x.flatten(0, 1))
    balance = load_balance_loss(route(scores, num_experts_per_token=2, normalize_weights=True))
    expected = 20 * (0.5 * balance + 0.25 * router_z_loss(scores))
    torch.testing.assert_close(layer(x)[1], expected)
    assert build()(x)[1] == 0


def test_the_load_balance_loss_makes_the_use_of_experts_even():
    layer = build(load_balance_weight=1.0)
    with torch.no_grad():
        layer.router.weight[0] += 1.0
    x = tokens(200) + 0.5
    optimizer = torch.optim.AdamW([layer.router.weight], lr=0.03)

    def busiest_share():
        chosen = layer.router(x.flatten(0, 1)).topk(2).indices
        return (chosen.flatten().bincount(minlength=NUM_EXPERTS) / chosen.numel()).max().item()

    before = busiest_share()
    for _ in range(60):
        optimizer.zero_grad()
        layer(x)[1].backward()
        optimizer.step()
    assert before > 0.4
    assert busiest_share() < 0.25  # even is 1/6


def test_one_token_meets_only_its_experts():
    layer = build(num_experts_per_token=2)
    assert layer.num_idle_parameters == 4 * 3 * WIDTH * EXPERT_WIDTH


def test_autocast_reaches_the_experts():
    layer, x = build(), tokens()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made, penalty = layer(x)
    assert (made.dtype, penalty.dtype) == (torch.float32, torch.float32)
    exact = layer(x)[0]
    assert not torch.equal(made, exact)
    torch.testing.assert_close(made, exact, atol=0.3, rtol=0.1)


@pytest.mark.slow
def test_it_compiles_into_one_graph_with_equal_gradients():
    layer, x = build(load_balance_weight=0.1), tokens()
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, dynamic=False, backend="aot_eager")):
        layer.zero_grad()
        made, penalty = run(x)
        (made.square().sum() + penalty).backward()
        results.append([made.detach(), *(torch.clone(parameter.grad) for parameter in layer.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_experts_per_token": 7},
            r"model\.experts\.num_experts_per_token=7 is not from 1 to model\.experts\.num_experts=6; nearest valid: 6",
        ),
        ({"num_experts_per_token": 0}, r"model\.experts\.num_experts_per_token=0 is not from 1 .*; nearest valid: 1"),
        ({"load_balance_weight": float("inf")}, r"model\.experts\.load_balance_weight=inf is not 0 or above"),
        ({"load_balance_weight": -1.0}, r"model\.experts\.load_balance_weight=-1\.0 is not 0 or above"),
        ({"router_z_weight": float("nan")}, r"model\.experts\.router_z_weight=nan is not 0 or above"),
    ],
)
def test_impossible_settings_are_refused_by_key(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        build(**settings)


def test_a_layer_without_experts_is_refused():
    with pytest.raises(ConfigurationError, match=r"model\.experts\.num_experts=0 is below 1; nearest valid: 1"):
        Experts(num_experts=0, num_experts_per_token=2)
