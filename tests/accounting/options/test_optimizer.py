"""What the optimizers say, held to what they do."""

import pytest

from tests import facts
from tests.optim.models import fill_gradients, tiny_model
from tests.optim.options import OWN, build

HERE = [option for option in OWN if option != "adamw_8bit"]  # which compiles for minutes


def shrunk(option: str, **settings: float) -> float:
    """Return the share of a weight's decay that zero gradients leave: 1 where it is lr times decay, as decoupled."""
    model = tiny_model()
    optimizer = build(option, model, lr=0.1, weight_decay=0.5, **settings)
    weight = next(parameter for parameter in model.blocks.parameters() if parameter.ndim == 2)
    before = weight.detach().clone()
    fill_gradients(model, step=0)
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    optimizer.step()
    return float(((before - weight.detach()) / before / 0.05).median())


@pytest.mark.parametrize("option", HERE)
def test_decay_is_taken_off_the_weights_exactly_where_it_is_said_to_be_decoupled(option: str) -> None:
    found = facts.optimizer(option)
    if found.decay == "decoupled":
        assert shrunk(option) == pytest.approx(1.0, abs=1e-3)
    elif found.update is not None:  # gradient descent moves by the gradient, where both come to the same
        assert shrunk(option) != pytest.approx(1.0, abs=1e-3)
