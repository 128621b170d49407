"""The references are transformers' sparse blocks; models of experts as a whole are compared in tests/interop."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.attention.eager import eager
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import (
    Experts,
    MixtureOfExperts,
    balance,
    balanced_layers,
    grouped_linear,
    load_balance_loss,
    route,
    router_z_loss,
)
from lmtrain.parallel.activation_checkpoint import every_block
from lmtrain.parallel.compilation import compile_blocks
from tests.traced import trace_only

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


def qwen2(layer):
    from transformers import Qwen2MoeConfig
    from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

    config = Qwen2MoeConfig(
        hidden_size=WIDTH,
        moe_intermediate_size=EXPERT_WIDTH,
        shared_expert_intermediate_size=layer.experts.shared_width,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=layer.experts.num_experts_per_token,
        norm_topk_prob=layer.experts.normalize_weights,
    )
    return with_weights(Qwen2MoeSparseMoeBlock(config), layer)


def deepseek(layer, version):
    import transformers
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    experts = layer.experts
    config = getattr(transformers, f"DeepseekV{version}Config")(
        hidden_size=WIDTH,
        moe_intermediate_size=EXPERT_WIDTH,
        n_shared_experts=experts.shared_width // EXPERT_WIDTH,
        n_routed_experts=NUM_EXPERTS,
        num_attention_heads=2,
        num_experts_per_tok=experts.num_experts_per_token,
        n_group=experts.num_groups,
        topk_group=experts.num_groups_per_token,
        norm_topk_prob=experts.normalize_weights,
        routed_scaling_factor=experts.weight_scale,
        **({"topk_method": "group_limited_greedy" if experts.num_groups > 1 else "greedy"} if version == 2 else {}),
    )
    return with_weights((DeepseekV2Moe if version == 2 else DeepseekV3MoE)(config), layer)


def deepseek_v2(layer):
    return deepseek(layer, 2)


def deepseek_v3(layer):
    return deepseek(layer, 3)


def gpt_oss(layer):
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(
        hidden_size=WIDTH,
        intermediate_size=EXPERT_WIDTH,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=layer.experts.num_experts_per_token,
        swiglu_limit=layer.experts.gate_limit,
        num_attention_heads=2,
    )
    reference = GptOssMLP(config)
    reference.experts.config._experts_implementation = "eager"
    with torch.no_grad():
        for number, bias in enumerate((layer.router.bias, layer.gate_up_bias, layer.down_bias)):
            bias.normal_(generator=torch.Generator().manual_seed(number))
        reference.router.weight.copy_(layer.router.weight)
        reference.router.bias.copy_(layer.router.bias)
        reference.experts.gate_up_proj.copy_(as_pairs(layer.gate_up).mT)
        reference.experts.gate_up_proj_bias.copy_(as_pairs(layer.gate_up_bias))
        reference.experts.down_proj.copy_(layer.down.mT)
        reference.experts.down_proj_bias.copy_(layer.down_bias)
    return reference


def as_pairs(halves):
    """Put gate and up side by side: [E, 2F, ...] -> [E, 2F, ...]."""
    return halves.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def test_experts_with_biases_and_clamped_gates_equal_those_of_gpt_oss():
    layer = build(biases=True, gate_limit=0.7)
    theirs = gpt_oss(layer)
    ours_in, theirs_in = tokens().requires_grad_(), tokens().requires_grad_()
    made, expected = layer(ours_in)[0], theirs(theirs_in)[0]
    torch.testing.assert_close(made, expected, atol=2e-6, rtol=1e-5)  # fp32, another order of sums
    made.sin().sum().backward()
    expected.sin().sum().backward()
    of_theirs = {
        "router.weight": theirs.router.weight.grad,
        "router.bias": theirs.router.bias.grad,
        "down": theirs.experts.down_proj.grad.mT,
        "down_bias": theirs.experts.down_proj_bias.grad,
    }
    pairs = [(layer.get_parameter(name).grad, gradient) for name, gradient in of_theirs.items()]
    pairs += [
        (ours_in.grad, theirs_in.grad),
        (as_pairs(layer.gate_up.grad), theirs.experts.gate_up_proj.grad.mT),
        (as_pairs(layer.get_parameter("gate_up_bias").grad), theirs.experts.gate_up_proj_bias.grad),
    ]
    for ours, expected_gradient in pairs:
        torch.testing.assert_close(ours, expected_gradient, atol=5e-6, rtol=1e-4)


def with_weights(reference, layer):
    reference.config = None
    reference.experts.config._experts_implementation = "eager"
    with torch.no_grad():
        reference.gate.weight.copy_(layer.router.weight)
        reference.experts.gate_up_proj.copy_(layer.gate_up)
        reference.experts.down_proj.copy_(layer.down)
        if layer.choice_bias is not None:
            layer.choice_bias.copy_(torch.linspace(-0.1, 0.1, NUM_EXPERTS))
            reference.gate.e_score_correction_bias.copy_(layer.choice_bias)
        if layer.shared is not None:
            shared = getattr(reference, "shared_expert", None) or reference.shared_experts
            gate, up = layer.shared.gate_up.weight.chunk(2)
            for part, weight in (
                (shared.gate_proj, gate),
                (shared.up_proj, up),
                (shared.down_proj, layer.shared.down.weight),
            ):
                part.weight.copy_(weight)
        if layer.shared_gate is not None:
            reference.shared_expert_gate.weight.copy_(layer.shared_gate.weight)
    return reference


SHARED = {"shared_width": EXPERT_WIDTH * 2}
DEEPSEEK = {**SHARED, "weight_scale": 2.5, "num_groups": 3, "num_groups_per_token": 2}


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({}, mixtral),
        ({"num_experts_per_token": 1}, mixtral),
        ({"num_experts_per_token": 6}, mixtral),
        ({"normalize_weights": False}, olmoe),
        ({"normalize_weights": False, "num_experts_per_token": 3}, olmoe),
        ({"normalize_weights": False, "shared_width": 40, "shared_gate": True}, qwen2),
        ({"normalize_weights": False, "weight_scale": 3.0, **SHARED}, deepseek_v2),
        ({"normalize_weights": False, **DEEPSEEK}, deepseek_v2),
        ({"scores": "sigmoid", "bias_step": 0.0, **DEEPSEEK}, deepseek_v3),
        ({"scores": "sigmoid", "bias_step": 0.1, **DEEPSEEK, "normalize_weights": False}, deepseek_v3),
    ],
)
def test_outputs_and_gradients_equal_those_of_transformers(settings, reference):
    layer = build(**settings)
    theirs = reference(layer)
    ours_in, theirs_in = tokens().requires_grad_(), tokens().requires_grad_()
    made, _ = layer(ours_in)
    expected = theirs(theirs_in)
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-5)  # fp32, another order of sums
    made.square().mean().backward()
    expected.square().mean().backward()
    pairs = [
        (ours_in.grad, theirs_in.grad),
        (layer.router.weight.grad, theirs.gate.weight.grad),
        (layer.gate_up.grad, theirs.experts.gate_up_proj.grad),
        (layer.down.grad, theirs.experts.down_proj.grad),
    ]
    for ours, expected_gradient in pairs:
        torch.testing.assert_close(ours, expected_gradient, atol=1e-6, rtol=1e-4)


def test_a_step_moves_the_bias_towards_experts_with_few_tokens_of_all_ranks():
    layer = build(scores="sigmoid", bias_step=0.25)
    for _ in range(2):  # micro-steps
        layer(tokens())
    counts = (
        route(layer.router(tokens().flatten(0, 1)), layer.experts).experts.flatten().bincount(minlength=NUM_EXPERTS)
    )
    assert torch.equal(layer.num_chosen, 2.0 * counts)
    layer.eval()(tokens())
    assert torch.equal(layer.num_chosen, 2.0 * counts)
    elsewhere = torch.tensor([[0.0, 0.0, 80.0, 0.0, 0.0, 0.0]])
    balance(balanced_layers(layer), lambda own: own + elsewhere)
    total = 2.0 * counts + elsewhere[0]
    assert torch.equal(layer.choice_bias, 0.25 * (total.mean() - total).sign())
    assert not layer.get_buffer("num_chosen").any()


def test_no_token_is_dropped_though_all_want_one_expert():
    layer = build(num_experts_per_token=1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[3] = 1.0
    x = tokens().abs()
    gate, up = (x @ layer.gate_up[3].T).chunk(2, dim=-1)
    torch.testing.assert_close(layer(x)[0], (torch.nn.functional.silu(gate) * up) @ layer.down[3].T)


def test_the_penalty_is_a_sum_over_tokens_of_both_losses():
    layer, x = build(load_balance_weight=0.5, router_z_weight=0.25), tokens()
    scores = layer.router(x.flatten(0, 1))
    balance = load_balance_loss(route(scores, layer.experts))
    expected = 20 * (0.5 * balance + 0.25 * router_z_loss(scores))
    torch.testing.assert_close(layer(x)[1], expected)
    assert build()(x)[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"scores": "sigmoid", "bias_step": 0.1, "shared_width": 8, "num_groups": 2}])
def test_it_compiles_into_one_graph_with_equal_gradients(settings):
    layer, x = build(load_balance_weight=0.1, **settings), tokens()
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True, dynamic=False, backend="aot_eager")):
        layer.zero_grad()
        made, penalty = run(x)
        (made.square().sum() + penalty).backward()
        results.append([made.detach(), *(torch.clone(parameter.grad) for parameter in layer.parameters())])
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-4)


SCORES = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_experts_per_token", [1, 2, 8])
def test_the_load_balance_loss_equals_that_of_transformers(num_experts_per_token):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    routing = route(SCORES, Experts(num_experts=8, num_experts_per_token=num_experts_per_token))
    expected = load_balancing_loss_func((SCORES,), num_experts=8, top_k=num_experts_per_token)
    torch.testing.assert_close(load_balance_loss(routing), expected)


ENDS = torch.tensor([3, 3, 10], dtype=torch.int32)  # the second group is empty


def operands(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 16, generator=generator, dtype=dtype, requires_grad=True)
    return x, torch.randn(3, 8, 16, generator=generator, dtype=dtype, requires_grad=True)


def group_by_group(x, weight):
    return torch.cat([x[:3] @ weight[0].T, x[3:] @ weight[2].T])


def test_gradients_equal_those_of_plain_products_and_an_empty_group_has_zeros():
    x, weight = operands()
    expected = torch.autograd.grad(group_by_group(x, weight).square().sum(), (x, weight))
    actual = torch.autograd.grad(grouped_linear(x, weight, ENDS).square().sum(), (x, weight))
    torch.testing.assert_close(actual, expected)
    assert not actual[1][1].any()


@pytest.mark.gpu
def test_the_grouped_kernel_equals_plain_products():
    x, weight = (operand.detach().cuda().bfloat16() for operand in operands())
    torch.testing.assert_close(grouped_linear(x, weight, ENDS.cuda()), group_by_group(x, weight), atol=0.05, rtol=0.02)


EXPERTS = Experts(num_experts=4, num_experts_per_token=2, load_balance_weight=0.1, router_z_weight=0.01)

BALANCED = Experts(
    num_experts=4, num_experts_per_token=2, scores="sigmoid", bias_step=0.1, dense_layers=[0], dense_width=40
)


def tiny(**options):
    dimensions = {
        "width": 32,
        "num_layers": 2,
        "num_heads": 4,
        "feed_forward_width": 48,
        "vocab_size": 101,
        "max_context_tokens": 64,
        "experts": EXPERTS,
        "init_std": 0.1,
        "attention": eager,
    }
    return Llama(**(dimensions | options))


def filled(**options):
    model = tiny(**options)
    model.initialize_weights(torch.Generator().manual_seed(0))
    return model


def tokens_llama_experts(num=33):
    return torch.randint(101, (2, num), generator=torch.Generator().manual_seed(1))


def step(model):
    """Return the sums of one forward and the gradients of one backward."""
    ids = tokens_llama_experts()
    total = model(ids[:, :-1], ids[:, 1:], CrossEntropy())
    model.zero_grad()
    total.objective.backward()
    return total, {name: torch.clone(parameter.grad) for name, parameter in model.named_parameters()}


def test_the_penalty_is_in_the_objective_and_never_in_the_nats():
    model = filled()
    total, _ = step(model)
    penalty = model.features(tokens_llama_experts()[:, :-1])[1]
    assert penalty is not None
    assert penalty.item() > 0.1 * 2 * 64  # balanced costs k = 2 a layer and token, times its weight
    assert total.objective.item() == pytest.approx(total.nats.item() + penalty.item(), rel=1e-5)


SHARED_EXPERTS = Experts(
    num_experts=4, num_experts_per_token=2, shared_width=96, shared_gate=True, dense_layers=[0], dense_width=200
)


@pytest.mark.parametrize("experts", [EXPERTS, SHARED_EXPERTS])
def test_counted_flops_are_those_of_the_chosen_experts(experts):
    model = filled(num_layers=3, width=64, feed_forward_width=128, experts=experts)
    with FlopCounterMode(display=False) as counter:
        model(tokens_llama_experts(64)[:, :64])
    expected = flops_per_token(model.shape(), 64).palm / 3 * 2 * 64
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"experts": BALANCED}])
def test_recomputed_blocks_compile_into_one_graph_each_with_equal_gradients(settings, monkeypatch):
    trace_only(monkeypatch)
    plain, compiled = step(filled(**settings)), step(compile_blocks(every_block(filled(**settings))))
    torch.testing.assert_close(compiled[0].objective, plain[0].objective)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(compiled[1][name], gradient, atol=1e-4, rtol=1e-3)
