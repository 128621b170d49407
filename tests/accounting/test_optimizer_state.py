import pytest
import torch

from lmtrain.accounting.optimizer_state import optimizer_state
from lmtrain.errors import ConfigurationError

SETTINGS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "adamw": (torch.optim.AdamW, {}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_table_equals_the_state_that_torch_keeps(name):
    build, settings = SETTINGS[name]
    parameter = torch.nn.Parameter(torch.ones(10, 100))
    torch_optimizer = build([parameter], lr=0.1, **settings)
    parameter.grad = torch.ones(10, 100)
    torch_optimizer.step()
    measured = sum(
        value.numel()
        for state in torch_optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    assert measured == optimizer_state(name).per_matrix_value * 1000


def test_unknown_optimizer_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigurationError, match="Did you mean 'adamw'"):
        optimizer_state("adam_w")
