"""Hold an option against a class that nobody here wrote, step by step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.optim.models import TinyModel, fill_gradients, tiny_model

NUM_STEPS = 200
DECAY = 0.1


def decayed_and_others(model: TinyModel) -> list[dict[str, Any]]:
    """Return groups by the rule alone: weights of two axes that are not looked up decay, and nothing else."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed = [p for p in model.parameters() if p.ndim == 2 and id(p) not in tables]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in tables]
    return [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]


def require_same_course(
    option: Callable[[nn.Module], torch.optim.Optimizer],
    reference: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    *,
    atol: float = 0.0,
) -> None:
    """Make sure that both keep the same weights over 200 steps, and do move them; `option` decays by DECAY."""
    ours, theirs = tiny_model(), tiny_model()
    start = [parameter.detach().clone() for parameter in ours.parameters()]
    optimizers = option(ours), reference(decayed_and_others(theirs))
    for step in range(NUM_STEPS):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            fill_gradients(model, step)
            optimizer.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=atol)
    for before, after in zip(start, ours.parameters(), strict=True):
        assert not torch.equal(before, after)
