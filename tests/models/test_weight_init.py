import torch
from torch import nn

from lmtrain.models.weight_init import fill_linear, fill_normal


def test_normal_has_the_asked_spread():
    parameter = nn.Parameter(torch.empty(400, 400))
    fill_normal(parameter, std=0.05, generator=torch.Generator().manual_seed(0))
    assert abs(parameter.std().item() - 0.05) < 5e-4
    assert abs(parameter.mean().item()) < 5e-4


def test_same_numbers_in_every_dtype():
    filled = []
    for dtype in (torch.float32, torch.bfloat16):
        parameter = nn.Parameter(torch.empty(10, 10, dtype=dtype))
        fill_normal(parameter, std=1.0, generator=torch.Generator().manual_seed(3))
        filled.append(parameter.detach())
    assert torch.equal(filled[0].bfloat16(), filled[1])


def test_linear_of_zero_spread_is_zero_and_draws_nothing():
    linear = nn.Linear(4, 4)
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    fill_linear(linear, std=0.0, generator=generator)
    assert not linear.weight.any()
    assert not linear.bias.any()
    assert torch.equal(generator.get_state(), state)
