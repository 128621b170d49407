"""A whole model of experts: its penalty, its counts, its start, and what compilation and recomputation do to it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtrain.accounting.model.flops import flops_per_token
from lmtrain.errors import ConfigurationError
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.models.attention.eager import eager
from lmtrain.models.llama import Llama
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.parallel.activation_checkpoint import every_block, selective
from lmtrain.parallel.compilation import compile_blocks
from tests.traced import trace_only

EXPERTS = Experts(num_experts=4, num_experts_per_token=2, load_balance_weight=0.1, router_z_weight=0.01)


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


def tokens(num=33):
    return torch.randint(101, (2, num), generator=torch.Generator().manual_seed(1))


def step(model):
    """Return the sums of one forward and the gradients of one backward."""
    ids = tokens()
    total = model(ids[:, :-1], ids[:, 1:], CrossEntropy())
    model.zero_grad()
    total.objective.backward()
    return total, {name: torch.clone(parameter.grad) for name, parameter in model.named_parameters()}


def test_the_penalty_is_in_the_objective_and_never_in_the_nats():
    model = filled()
    total, _ = step(model)
    penalty = model.features(tokens()[:, :-1])[1]
    assert penalty is not None
    assert penalty.item() > 0.1 * 2 * 64  # balanced costs k = 2 a layer and token, times its weight
    assert total.objective.item() == pytest.approx(total.nats.item() + penalty.item(), rel=1e-5)


def test_a_model_without_experts_has_no_penalty():
    assert filled(experts=None).features(tokens())[1] is None


def test_counted_flops_are_those_of_the_chosen_experts():
    model = filled(num_layers=3, width=64, feed_forward_width=128)
    with FlopCounterMode(display=False) as counter:
        model(tokens(64)[:, :64])
    expected = flops_per_token(model.shape(), 64).palm / 3 * 2 * 64
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_active_and_total_parameters_differ_by_the_idle_experts():
    shape = tiny().shape()
    assert shape.num_parameters == sum(parameter.numel() for parameter in tiny().parameters())
    assert shape.num_parameters - shape.num_active_parameters == 2 * 2 * 3 * 32 * 48  # 2 layers, 2 idle experts


def test_no_parameter_is_left_as_it_was_after_materialising():
    with torch.device("meta"):
        model = tiny()
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(float("nan"))
    model.initialize_weights(torch.Generator().manual_seed(0))
    assert all(tensor.isfinite().all() for tensor in (*model.parameters(), *model.buffers()))
    expected = filled().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_later_tokens_change_nothing_before_them():
    model, changed = filled(), tokens()
    changed[:, 20:] = 5
    torch.testing.assert_close(model(tokens())[:, :20], model(changed)[:, :20])


@pytest.mark.parametrize("recompute", [every_block, selective])
def test_recomputing_gives_equal_gradients(recompute):
    plain, recomputed = step(filled()), step(recompute(filled()))
    assert torch.equal(plain[0].objective, recomputed[0].objective)
    assert all(torch.equal(gradient, recomputed[1][name]) for name, gradient in plain[1].items())


@pytest.mark.slow
def test_recomputed_blocks_compile_into_one_graph_each_with_equal_gradients(monkeypatch):
    trace_only(monkeypatch)
    plain, compiled = step(filled()), step(compile_blocks(every_block(filled())))
    torch.testing.assert_close(compiled[0].objective, plain[0].objective)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(compiled[1][name], gradient, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "relu_squared"}, r"model\.activation=relu_squared has no effect with model\.experts"),
        ({"qk_norm_over": "width"}, r"model\.qk_norm_over=width needs model\.qk_norm=true"),
        ({"qk_norm": True, "qk_norm_scale": 1.2, "qk_norm_over": "width"}, r"model\.qk_norm_scale=null"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        tiny(**options)
