"""Loaded state has the format it was saved in, also where torch casts it."""

import copy

import torch
from torch import nn

from lmtrain.optim.adamw_update import restore_formats


def test_state_that_was_cast_on_loading_is_put_back() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones(4)
    optimizer.step()
    optimizer.state[parameter]["momentum_buffer"] = torch.full((4,), 0.3, dtype=torch.float64)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(copy.deepcopy(saved))
    assert optimizer.state[parameter]["momentum_buffer"].dtype == torch.float32, "torch casts no more: drop this module"
    restore_formats(optimizer, saved)
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [0.3] * 4
