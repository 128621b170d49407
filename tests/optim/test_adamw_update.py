"""One update by torch's function, of all at once and of each in fp32."""

import copy

import pytest
import torch
from torch import nn

from lmtrain.optim.adamw import RoundedAdamW
from lmtrain.optim.adamw_update import (
    copy_rounded_,
    noise_of_step,
)
from tests.optim.models import fill_gradients, tiny_model

GROUP = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0, "fused": False}


def parameter(dtype: torch.dtype = torch.float32) -> nn.Parameter:
    made = nn.Parameter(torch.ones(64, dtype=dtype))
    made.grad = torch.full_like(made, 0.25)
    return made


SETTINGS = {"betas": (0.9, 0.999), "eps": 1e-8, "fused": True}


def build(parameters: list[nn.Parameter], *, lr: float = 0.01, moments: bool = True) -> RoundedAdamW:
    groups = [{"params": parameters, "lr": lr, "weight_decay": 0.1}]
    return RoundedAdamW(groups, **SETTINGS, moments_dtype=torch.bfloat16 if moments else None)


def test_in_fp32_it_is_adamw() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizer = build(list(ours.parameters()), moments=False)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1, fused=True)
    for step in range(20):
        for model, one in ((ours, optimizer), (theirs, reference)):
            fill_gradients(model, step)
            one.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_second_moment_in_bf16_fades_as_in_fp32_which_rounding_to_nearest_forgets() -> None:
    parameter = nn.Parameter(torch.zeros(4096))
    parameter.grad = torch.zeros(4096)
    optimizer, nearest = build([parameter], lr=0.0), torch.ones(4096, dtype=torch.bfloat16)
    optimizer.step()
    found = optimizer.state[parameter]["exp_avg_sq"].fill_(1.0)
    for _ in range(600):
        optimizer.step()
        nearest = (nearest.float() * 0.999).bfloat16()
    assert found.dtype == torch.bfloat16
    assert found.float().mean().item() == pytest.approx(0.999**600, rel=0.01)
    assert (nearest == 1).all()


def test_bf16_weights_take_steps_too_small_for_bf16_on_average() -> None:
    parameter = nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
    optimizer = RoundedAdamW([{"params": [parameter], "lr": 1e-4, "weight_decay": 0.0}], **SETTINGS, moments_dtype=None)
    for _ in range(50):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert parameter.float().mean().item() == pytest.approx(1 - 50 * 1e-4, abs=3e-4)  # one step of bf16 is 4e-3


def test_saved_state_keeps_its_format_and_goes_on_exactly() -> None:
    model = tiny_model()
    optimizer = build(list(model.parameters()))
    for step in range(3):
        fill_gradients(model, step)
        optimizer.step()
    other = copy.deepcopy(model)
    resumed = build(list(other.parameters()))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for step in range(3, 6):
        for one, its in ((model, optimizer), (other, resumed)):
            fill_gradients(one, step)
            its.step()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert resumed.state[theirs]["exp_avg"].dtype == torch.bfloat16


def rounded(values: torch.Tensor, step: int = 0) -> torch.Tensor:
    target = torch.empty_like(values, dtype=torch.bfloat16)
    copy_rounded_(target, values, generator=noise_of_step(step, group=0, device=values.device))
    return target


def test_the_mean_is_kept_where_rounding_to_nearest_loses_it() -> None:
    value = 1 + 1 / 1024  # bf16 has 1 and 1 + 1/128
    values = torch.full((200_000,), value)
    assert values.bfloat16().float().mean() == 1
    found = rounded(values).float()
    assert set(found.tolist()) == {1.0, 1 + 1 / 128}
    assert found.mean().item() == pytest.approx(value, abs=5 * 0.0026 / 200_000**0.5)  # five standard errors
