"""torch's own course, with decay where it belongs, and nothing that the host waits for."""

import pytest
import torch
from torch import nn

from lmtrain.optim.adafactor import Adafactor, adafactor
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.reference import DECAY, decayed_and_others

# torch reckons with norms in double precision on the host; in bf16 an update of about 1 is rounded once more here.
NEAR = {torch.float32: {"rtol": 1e-6, "atol": 1e-7}, torch.bfloat16: {"rtol": 2**-7, "atol": 2**-6}}


@pytest.mark.parametrize("lr", [0.02, 0.5])  # 1 / sqrt(step) is the rate, where it is smaller
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_equals_torch_step_by_step(dtype: torch.dtype, lr: float) -> None:
    shapes = [(), (5,), (4, 6), (7, 3), (2, 5, 3)]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    ours, theirs = ([nn.Parameter(weight.clone()) for weight in start] for _ in range(2))
    settings = {"lr": lr, "beta2_decay": -0.7, "eps": (None, 1e-2), "d": 1.5, "weight_decay": 0.1}
    optimizers = Adafactor(ours, **settings), torch.optim.Adafactor(theirs, **settings, foreach=False)
    for _ in range(20):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator).to(dtype)
            other.grad = mine.grad.clone()
            torch.testing.assert_close(mine, other, **NEAR[dtype])
            other.data.copy_(mine.data)  # so that only a step's own difference shows
        for optimizer in optimizers:
            optimizer.step()
    assert all(not torch.equal(mine, before) for mine, before in zip(ours, start, strict=True))


def test_the_option_decays_where_the_rule_says() -> None:
    ours, theirs = tiny_model(), tiny_model()
    mine = adafactor(ours, lr=0.02, beta2_decay=-0.7, relative_eps=1e-2, clip_threshold=1.5, weight_decay=DECAY)
    other = Adafactor(decayed_and_others(theirs), lr=0.02, beta2_decay=-0.7, eps=(None, 1e-2), d=1.5)
    for step in range(3):
        for model, optimizer in ((ours, mine), (theirs, other)):
            fill_gradients(model, step)
            optimizer.step()
    for my_weight, weight in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(my_weight, weight)


def test_state_is_saved_under_the_names_of_torch_s_class() -> None:
    ours, theirs = tiny_model(), tiny_model()
    mine = adafactor(ours, lr=0.02)
    other = torch.optim.Adafactor(theirs.parameters(), lr=0.02)
    for model, optimizer in ((ours, mine), (theirs, other)):
        fill_gradients(model, 0)
        optimizer.step()
    for my_weight, weight in zip(ours.parameters(), theirs.parameters(), strict=True):
        my_state, state = mine.state[my_weight], other.state[weight]
        assert {name: tensor.shape for name, tensor in my_state.items()} == {
            name: tensor.shape for name, tensor in state.items()
        }
