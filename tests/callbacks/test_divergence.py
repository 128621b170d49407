import torch

from lmtrain.callbacks.divergence import Divergence
from lmtrain.callbacks.token_budget import TokenBudget
from tests.callbacks.tiny_run import NotANumber


def fit(run, *more, lr, **settings):
    plain = {"most_rise": 3.0, "mean_steps": 2, "every_steps": 1}
    divergence = Divergence(**plain | settings, context=run.context)
    module = run.module(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr))
    return run.fit(divergence, *more, TokenBudget(context=run.context), module=module)


def test_a_loss_far_above_its_lowest_ends_the_run_and_a_falling_one_does_not(make_run):
    assert fit(make_run(steps=30), lr=1e-3).global_step == 30
    assert fit(make_run(steps=30, name="wild"), lr=1e4).global_step < 30


def test_a_loss_that_is_no_number_ends_the_run_at_once(make_run):
    run = make_run(steps=30, name="odd")
    assert fit(run, NotANumber(2), lr=1e-3, most_rise=1e9).global_step == 3, "the loss after the broken step"
