"""The package's course, near AdamW's own, in two bytes of state a parameter."""

from typing import Any

import pytest
import torch
from torch import nn
from torchao.optim import AdamW8bit

from lmtrain.errors import EnvironmentProblem
from lmtrain.optim import adamw_8bit as module
from lmtrain.optim.adamw_8bit import adamw_8bit
from tests.optim.models import tiny_model


def wide_model() -> Any:
    """A matrix that is large enough to be kept in 8 bits, and a bias that is not."""
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(64, 128)])
    return model


@pytest.mark.slow
def test_equals_the_package_and_stays_near_adamw() -> None:
    ours, theirs, exact = wide_model(), wide_model(), wide_model()
    decays = [{"params": [p], "weight_decay": 0.1 if p.ndim == 2 else 0.0} for p in theirs.parameters()]
    optimizers = (
        adamw_8bit(ours, lr=1e-2, beta2=0.95, weight_decay=0.1),
        AdamW8bit(decays, lr=1e-2, betas=(0.9, 0.95), eps=1e-8),
        torch.optim.AdamW(exact.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
    )
    generator = torch.Generator().manual_seed(0)
    start = ours.blocks[0].weight.detach().clone()
    for _ in range(20):
        gradients = [torch.randn(p.shape, generator=generator) for p in ours.parameters()]
        for model, optimizer in zip((ours, theirs, exact), optimizers, strict=True):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
    moved, drift = ours.blocks[0].weight - start, ours.blocks[0].weight - exact.blocks[0].weight
    assert drift.norm() < 0.1 * moved.norm()


def test_a_machine_without_a_compiler_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_compiler", lambda: False)
    with pytest.raises(EnvironmentProblem, match=r"C\+\+ compiler: install g\+\+, or use optimizer=adamw"):
        adamw_8bit(tiny_model(), lr=1e-3)
