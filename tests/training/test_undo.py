"""A step taken back leaves weights and state as they were, to the last bit, whatever the optimizer."""

import copy

import lion_pytorch
import pytest
import torch
from torchao.optim.subclass_8bit import OptimState8bit

from lmtrain.optim.muon import muon
from lmtrain.training.spikes import Undo
from tests.optim.models import fill_gradients, tiny_model

RATES = {"lr": 0.02, "embedding_lr": 0.03, "head_lr": 0.004, "vector_lr": 0.01}
OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, fused=True),
    "adamw_foreach": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1, momentum=0.9),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.1),
    "lion": lambda model: lion_pytorch.Lion(model.parameters(), lr=0.1),
    "muon": lambda model: muon(model, **RATES, row_beta=0.9),
}


def snapshot(model, optimizer):
    return copy.deepcopy([[*model.parameters()], optimizer.state_dict()["state"]])


def assert_equal(actual, expected):
    for mine, other in zip(actual[0], expected[0], strict=True):
        assert torch.equal(mine, other)
    assert actual[1].keys() == expected[1].keys()
    for number, state in actual[1].items():
        for name, value in state.items():
            assert torch.equal(value, expected[1][number][name]), name


def step(model, optimizer, number, *, skip=None):
    fill_gradients(model, number)
    if skip is None:
        optimizer.step()
        return
    if skip:
        for parameter in model.parameters():
            parameter.grad.fill_(float("nan"))
    undo = Undo(optimizer)
    optimizer.step()
    undo.where(torch.tensor(skip))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_weights_and_state_to_the_last_bit(name):
    model = tiny_model()
    optimizer = OPTIMIZERS[name](model)
    for number in range(2):
        step(model, optimizer, number)
    before = snapshot(model, optimizer)
    step(model, optimizer, 2, skip=True)
    assert_equal(snapshot(model, optimizer), before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_is_not_skipped_is_made_to_the_last_bit(name):
    guarded, plain = tiny_model(), tiny_model()
    optimizers = [OPTIMIZERS[name](model) for model in (guarded, plain)]
    for number in range(3):
        step(guarded, optimizers[0], number, skip=False)
        step(plain, optimizers[1], number)
    assert_equal(snapshot(guarded, optimizers[0]), snapshot(plain, optimizers[1]))


@pytest.mark.parametrize("name", ["adamw", "rmsprop", "lion", "muon"])
def test_a_first_step_that_is_skipped_leaves_an_optimizer_as_new(name):
    model, fresh = tiny_model(), tiny_model()
    optimizer, other = OPTIMIZERS[name](model), OPTIMIZERS[name](fresh)
    step(model, optimizer, 0, skip=True)
    step(model, optimizer, 1)
    step(fresh, other, 1)
    assert_equal(snapshot(model, optimizer), snapshot(fresh, other))


def test_nothing_asks_the_device():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.ones(3)
    optimizer.step()
    undo, skip = Undo(optimizer), torch.tensor(True)
    with torch.profiler.profile() as profile:
        undo.where(skip)
    assert "aten::_local_scalar_dense" not in {event.key for event in profile.key_averages()}


def test_state_in_eight_bits_is_put_back_too():
    weight = torch.nn.Parameter(torch.zeros(4, 256))
    weight.grad = torch.ones(4, 256)
    optimizer = torch.optim.SGD([weight])
    state = OptimState8bit.zeros((4, 256), signed=True)
    state.copy_(torch.randn(4, 256, generator=torch.Generator().manual_seed(0)))
    optimizer.state[weight]["exp_avg"] = state
    before = state.dequantize()
    undo = Undo(optimizer)
    state.copy_(torch.ones(4, 256))
    assert not torch.equal(state.dequantize(), before)
    undo.where(torch.tensor(True))
    assert torch.equal(state.dequantize(), before)
