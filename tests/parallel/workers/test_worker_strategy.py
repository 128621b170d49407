"""Checkpoints of two workers across numbers of workers and strategies; exact ones are in test_diloco.py."""

from datetime import timedelta

import pytest
import torch
from torch import nn

from lmtrain.parallel.diloco import WorkersStrategy
from lmtrain.parallel.outer_step import OuterStep
from tests.parallel.workers.test_outer_step import flat, model, train_apart


@pytest.fixture
def strategy():
    """A worker whose weights have left the global ones."""
    outer = OuterStep(every_steps=2, num_fragments=1, lr=0.7, momentum=0.9, delta="fp32")
    made = WorkersStrategy(outer, timeout=timedelta(seconds=60))
    module = nn.Module()
    module.language_model = model()
    module.register_buffer("count", torch.ones(1))
    outer.start(module.language_model)
    train_apart(module.language_model.parameters(), rank=0, step=0)
    made._lightning_module = made.model = module  # pyright: ignore[reportAttributeAccessIssue]
    return made


def test_ddp_wraps_nothing(strategy):
    before = strategy.model
    strategy.configure_ddp()
    assert strategy.model is before


def test_the_state_has_the_global_weights_under_the_models_names(strategy):
    own = flat(strategy.model.parameters())
    state = strategy.lightning_module_state_dict()
    assert state.keys() == strategy.model.state_dict().keys()
    assert torch.equal(
        flat(state[f"language_model.{name}"] for name, _ in model().named_parameters()), flat(model().parameters())
    )
    assert state["count"].item() == 1
    assert torch.equal(flat(strategy.model.parameters()), own), "saving moves nothing"


@pytest.mark.parametrize("has_outer", [True, False])
def test_a_worker_goes_on_from_its_own_weights_where_there_are_any(strategy, has_outer):
    outer, own = strategy._outer, flat(strategy._outer.own())
    checkpoint = {"state_dict": {name: value.clone() for name, value in strategy.lightning_module_state_dict().items()}}
    if has_outer:
        kept = [weight.clone() for weight in outer.own()]
        checkpoint["outer_step"] = {"momentum": outer.momentum(), "own": kept, "sent_bytes": 12.0}
    train_apart(strategy.model.parameters(), rank=1, step=1)
    strategy.load_model_state_dict(checkpoint)
    assert torch.equal(flat(outer.own()), own) is has_outer
    outer.eval()
    assert torch.equal(flat(strategy.model.parameters()), flat(model().parameters()))
    assert outer.sent_bytes == 12.0 * has_outer
