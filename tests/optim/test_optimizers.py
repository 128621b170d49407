"""The same numbers as torch.optim.AdamW, step by step, and decay where it belongs."""

import copy
from typing import Any

import pytest
import torch
from lion_pytorch import Lion
from schedulefree import AdamWScheduleFree
from torch import nn
from torchao.optim import AdamW8bit

from lmtrain.optim.adamw import adamw
from lmtrain.optim.fused import can_fold, fold_into_step
from lmtrain.optim.package_optimizers import adamw_8bit, lion, schedule_free
from lmtrain.optim.torch_optimizers import adagrad, momentum, rmsprop
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.reference import DECAY, require_same_course

SETTINGS = {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7}


def test_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: adamw(model, **SETTINGS, weight_decay=DECAY),
        lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-7, fused=True),
    )


@pytest.mark.parametrize(("decay_embeddings", "expected"), [(False, 0.0), (True, 0.1)])
def test_embeddings_decay_only_on_request_and_vectors_never(decay_embeddings: bool, expected: float) -> None:
    optimizer = adamw(tiny_model(), **SETTINGS, weight_decay=0.1, decay_embeddings=decay_embeddings)
    decay = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decay == {"matrices": 0.1, "head": 0.1, "embeddings": expected, "vectors": 0.0}


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


def test_equals_torch_step_by_step_adagrad() -> None:
    require_same_course(
        lambda model: adagrad(model, lr=0.02, eps=1e-9, initial_accumulator=0.1, weight_decay=DECAY),
        lambda groups: torch.optim.Adagrad(groups, lr=0.02, eps=1e-9, initial_accumulator_value=0.1, foreach=False),
        atol=1e-6,  # torch's fused step, which it is here, rounds otherwise than its loop
    )


def test_equals_the_package_step_by_step() -> None:
    require_same_course(
        lambda model: lion(model, lr=1e-3, beta1=0.9, beta2=0.98, weight_decay=DECAY),
        lambda groups: Lion(groups, lr=1e-3, betas=(0.9, 0.98)),
    )


def test_equals_torch_step_by_step_rmsprop() -> None:
    require_same_course(
        lambda model: rmsprop(model, lr=1e-3, beta2=0.95, eps=1e-7, weight_decay=DECAY),
        lambda groups: torch.optim.RMSprop(groups, lr=1e-3, alpha=0.95, eps=1e-7),
    )


def in_training(optimizer: AdamWScheduleFree) -> AdamWScheduleFree:
    optimizer.train()
    return optimizer


def test_equals_the_package_step_by_step_schedule_free() -> None:
    require_same_course(
        lambda model: schedule_free(model, lr=5e-3, beta1=0.9, beta2=0.98, eps=1e-7, weight_decay=DECAY),
        lambda groups: in_training(AdamWScheduleFree(groups, lr=5e-3, betas=(0.9, 0.98), eps=1e-7)),
    )


def test_it_evaluates_the_average_and_trains_on_from_where_it_was() -> None:
    model = tiny_model()
    optimizer = schedule_free(model, lr=5e-3)
    for step in range(5):
        fill_gradients(model, step)
        optimizer.step()
    trained = copy.deepcopy(model)
    optimizer.eval()
    weight = model.get_parameter("head.weight")
    at, z = trained.get_parameter("head.weight"), optimizer.state[weight]["z"]
    torch.testing.assert_close(weight, (at - 0.1 * z) / 0.9)  # y = 0.9 x + 0.1 z
    optimizer.train()
    for mine, before in zip(model.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(mine, before, rtol=0, atol=1e-6)  # there and back in fp32


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_equals_torch_step_by_step(nesterov: bool) -> None:
    require_same_course(
        lambda model: momentum(model, lr=0.05, momentum=0.8, nesterov=nesterov, weight_decay=DECAY),
        lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=nesterov),
    )


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_factor_folded_into_the_fused_step_moves_weights_as_scaled_gradients_do(kind: Any) -> None:
    def stepped(*, folded: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(5, 3, generator=generator))
        optimizer = kind([weight], lr=0.1, fused=True)
        for clip in (0.25, 1.0, 0.5):
            weight.grad, factor = torch.randn(5, 3, generator=generator), torch.tensor(clip)
            if folded:
                assert can_fold(optimizer)
                fold_into_step(optimizer, factor.reciprocal())
            else:
                weight.grad.mul_(factor)
            optimizer.step()
        return weight.detach()

    torch.testing.assert_close(stepped(folded=True), stepped(folded=False), rtol=1e-6, atol=1e-7)
