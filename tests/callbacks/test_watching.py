"""Callbacks that watch a run, and end it: health, divergence, hangs, silent corruption."""

import pytest
import torch
from torch import nn

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.divergence import Divergence
from lmtrain.callbacks.silent_corruption import SilentCorruption
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.training_health import TrainingHealth
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepRecord
from tests.callbacks.tiny_run import NotANumber, TinyModel


def train(run, *callbacks, **settings):
    health = TrainingHealth(every_steps=4, context=run.context)
    budget, checkpoint = TokenBudget(context=run.context), Checkpoint(every_steps=2, context=run.context)
    return run.fit(*callbacks, health, budget, checkpoint, module=run.module(**settings))


@pytest.mark.parametrize(("gradient", "norm"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_step_that_is_not_finite_stops_the_run_with_its_batch_named(make_run, gradient, norm):
    run = make_run(steps=9)
    with pytest.raises(EnvironmentProblem) as stopped:
        train(run, NotANumber(3, gradient=gradient))
    message = str(stopped.value)
    assert "Step 3 has loss" in message
    assert f"gradient norm {norm}" in message
    assert "windows 8 to 11 of the run's order" in message  # 4 sequences a step, from 0
    assert f"The last good checkpoint is {run.context.checkpoints_folder / 'step_00000002'}" in message
    assert stopped.value.exit_code == 3
    assert run.saved_steps() == [2]


def test_a_step_that_was_skipped_is_no_harm_and_is_saved(make_run):
    run = make_run(steps=6)
    spikes = SpikeFilter(num_sigmas=6.0, window_steps=8)
    assert train(run, NotANumber(4), spikes=spikes).global_step == 6
    assert run.saved_steps() == [4, 6]
    assert int(spikes.num_skipped) == 1


def test_ten_steps_skipped_one_after_the_other_stop_the_run(make_run):
    run = make_run(steps=30)
    broken = [NotANumber(step) for step in range(3, 13)]
    with pytest.raises(EnvironmentProblem, match="Step 12 has loss"):
        train(run, *broken, spikes=SpikeFilter(num_sigmas=6.0, window_steps=8))


def test_a_hundred_steps_without_a_token_that_is_scored_teach_nothing(make_run):
    health = TrainingHealth(every_steps=4, context=make_run(steps=12).context)
    nothing = [StepRecord(step, float("nan"), 0.0, 0.1, num_tokens=0) for step in range(1, 101)]
    health._take_steps = lambda: [*nothing[:99], StepRecord(100, 2.0, 1.0, 0.1), *nothing[:99]]
    health.on_due_step(None, None)
    health._take_steps = lambda: [nothing[99]]
    with pytest.raises(DataError, match="Steps 1 to 100 have no token with loss: nothing is learned"):
        health.on_due_step(None, None)


def fit(run, *more, lr, **settings):
    plain = {"most_rise": 3.0, "mean_steps": 2, "every_steps": 1}
    divergence = Divergence(**plain | settings, context=run.context)
    module = run.module(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr))
    return run.fit(divergence, *more, TokenBudget(context=run.context), module=module)


def test_a_loss_far_above_its_lowest_ends_the_run_and_a_falling_one_does_not(make_run):
    assert fit(make_run(steps=30), lr=1e-3).global_step == 30
    assert fit(make_run(steps=30, name="wild"), lr=1e4).global_step < 30


class Wrong(TinyModel):
    """Computes with a flipped bit, forward or backward, at one call of its training, counted from 1."""

    def __init__(self, *, call: int, backward: bool = False) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.call, self.backward, self.calls = call, backward, 0

    def features(self, tokens, documents=None):
        hidden = self.dropout(super().features(tokens, documents)[0])
        self.calls += self.training
        if self.calls == self.call and not self.backward:
            hidden = hidden * (1 + 1e-3)
        if self.calls == self.call and self.backward:
            hidden.register_hook(lambda gradient: gradient * (1 + 1e-3))
        return hidden, None


def train_of_silent_corruption(run, model, **settings):
    module = run.module(model)
    callback = SilentCorruption(**settings, context=run.context)
    run.fit(callback, TokenBudget(context=run.context), module=module)
    return [parameter.detach().clone() for parameter in module.parameters()]


@pytest.mark.parametrize(("call", "backward", "named"), [(3, False, "the loss"), (3, True, "embedding.weight")])
def test_a_wrong_result_ends_the_run_with_the_rank_and_the_first_difference_named(make_run, call, backward, named):
    run = make_run(steps=6)
    with pytest.raises(EnvironmentProblem, match=rf"Step 2: .* rank 0 \([^)]*{named}") as stopped:
        train_of_silent_corruption(
            run, Wrong(call=call, backward=backward), recompute_every_steps=2
        )  # calls: a step, then twice
    assert stopped.value.exit_code == 3


def test_computing_twice_changes_no_bit_of_the_run_and_off_no_hook_is_there(make_run):
    plain, model = train_of_silent_corruption(make_run(steps=4), Wrong(call=0)), Wrong(call=0)
    checked = train_of_silent_corruption(make_run(steps=4, name="dog"), model, recompute_every_steps=2)
    assert all(torch.equal(one, other) for one, other in zip(plain, checked, strict=True))
    assert model.calls == 4 + 2 * 2
    off = SilentCorruption(context=make_run(steps=4, name="cow").context)
    assert not {name for name in vars(off) if name.startswith("on_")}
