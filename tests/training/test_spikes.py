"""Spikes: recognised, and taken back."""

import copy
import statistics

import lightning.pytorch as pl
import lion_pytorch
import pytest
import torch
from torchao.optim.subclass_8bit import OptimState8bit

from lmtrain.optim.muon import muon
from lmtrain.training.spikes import SpikeFilter, Undo
from tests.optim.models import fill_gradients, tiny_model
from tests.training.short_run import LR, train, weights


def judge(filtering, loss, norm=1.0):
    return bool(filtering.judge(torch.tensor([loss, norm], dtype=torch.float64)))


def filled(num_steps=8, *, num_sigmas=3.0, window_steps=8):
    filtering = SpikeFilter(num_sigmas=num_sigmas, window_steps=window_steps)
    for step in range(num_steps):
        assert not judge(filtering, 2.0 + 0.1 * (step % 3), 1.0 + 0.1 * (step % 2))
    return filtering


@pytest.mark.parametrize(("loss", "norm"), [(9.0, 1.0), (2.0, 50.0), (9.0, 50.0)])
def test_a_loss_or_a_norm_that_stands_out_is_a_spike(loss, norm):
    assert judge(filled(), loss, norm)


def test_the_limit_is_so_many_standard_deviations_above_the_mean_of_the_window():
    losses = [2.0, 2.1, 2.2, 2.0, 2.1, 2.2, 2.0, 2.1]
    limit = statistics.fmean(losses) + 3.0 * statistics.stdev(losses)
    assert not judge(filled(), limit - 1e-4)
    assert judge(filled(), limit + 1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_a_spike_from_the_first_step_and_not_remembered(value):
    filtering = SpikeFilter(num_sigmas=6.0, window_steps=8)
    assert judge(filtering, value)
    assert judge(filtering, 1.0, value)
    assert int(filtering.num_seen) == 0
    assert int(filtering.num_skipped) == 2
    assert filtering.recent.isfinite().all()


def test_a_loss_that_rose_for_good_is_a_spike_no_more_once_the_window_knows_it():
    filtering = filled()
    verdicts = [judge(filtering, 9.0) for _ in range(8)]
    assert verdicts[0]
    assert not verdicts[-1]


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


class BreakGradients(pl.Callback):
    """Makes the gradients of some steps, counted from 1, infinite."""

    def __init__(self, *steps):
        self.steps = steps

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step + 1 in self.steps:
            gradient = next(pl_module.language_model.parameters()).grad
            assert gradient is not None
            gradient.fill_(float("inf"))


def sgd_with_momentum(model):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


@pytest.mark.faults
def test_a_spike_changes_no_weight_and_the_run_goes_on_with_its_schedule_and_data(data_folder, tmp_path):
    settings = {"micro_batch_sequences": 2, "optimizer": sgd_with_momentum}
    before, _ = train(data_folder, tmp_path, steps=2, **settings)
    spikes = SpikeFilter(num_sigmas=6.0, window_steps=8)
    after, batches = train(data_folder, tmp_path, steps=3, spikes=spikes, extra=BreakGradients(3), **settings)
    assert torch.equal(weights(after), weights(before))
    assert [record.was_skipped for record in after.step_metrics.drain()] == [False, False, True]
    guarded, more = train(data_folder, tmp_path, steps=4, spikes=SpikeFilter(num_sigmas=6.0, window_steps=8),
                          extra=BreakGradients(3), **settings)  # fmt: skip
    assert weights(guarded).isfinite().all()
    assert not torch.equal(weights(guarded), weights(before)), "the fourth step was made"
    assert [record.lr for record in guarded.step_metrics.drain()] == pytest.approx([LR, 0.9 * LR, 0.8 * LR, 0.7 * LR])
    assert all(torch.equal(one, other) for one, other in zip(batches, more[: len(batches)], strict=True))
