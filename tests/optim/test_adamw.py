"""The same numbers as torch.optim.AdamW, step by step, and decay where it belongs."""

import pytest
import torch

from lmtrain.errors import ConfigurationError
from lmtrain.optim.adamw import RoundedAdamW, adamw
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.reference import DECAY, require_same_course

SETTINGS = {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-7}


def test_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: adamw(model, **SETTINGS, weight_decay=DECAY),
        lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-7, fused=True),
    )


def test_unfused_equals_torch_step_by_step() -> None:
    require_same_course(
        lambda model: adamw(model, **SETTINGS, weight_decay=DECAY, fused=False),
        lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-7, foreach=False),
        atol=1e-6,  # many tensors at once round in another order
    )


@pytest.mark.parametrize(("decay_embeddings", "expected"), [(False, 0.0), (True, 0.1)])
def test_embeddings_decay_only_on_request_and_vectors_never(decay_embeddings: bool, expected: float) -> None:
    optimizer = adamw(tiny_model(), **SETTINGS, weight_decay=0.1, decay_embeddings=decay_embeddings)
    decay = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decay == {"matrices": 0.1, "head": 0.1, "embeddings": expected, "vectors": 0.0}


def test_fused_on_this_device() -> None:
    model = tiny_model()
    optimizer = adamw(model, lr=0.01)
    fill_gradients(model, 0)
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "aten::_fused_adamw_" in {event.key for event in profile.key_averages()}


def test_tied_model_has_no_head_group() -> None:
    optimizer = adamw(tiny_model(tied=True), lr=0.01)
    assert [group["name"] for group in optimizer.param_groups] == ["matrices", "embeddings", "vectors"]


def test_options_that_torch_has_not_take_ours() -> None:
    assert type(adamw(tiny_model(), lr=0.01, fused=False)) is torch.optim.AdamW
    assert type(adamw(tiny_model(), lr=0.01)) is torch.optim.AdamW
    assert type(adamw(tiny_model(), lr=0.01, moments="bf16")) is RoundedAdamW
    assert type(adamw(tiny_model().bfloat16(), lr=0.01, stochastic_rounding=True)) is RoundedAdamW
    with pytest.raises(ConfigurationError, match="no weight is bf16"):
        adamw(tiny_model(), lr=0.01, stochastic_rounding=True)
