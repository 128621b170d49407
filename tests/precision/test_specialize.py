import torch
from torch import nn

from lmtrain.precision.cast_weights import specialize


def plus(kind, number):
    return {"forward": lambda self, x: kind.forward(self, x) + number}


def test_a_module_computes_otherwise_under_its_own_name():
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    before, names = layer(x), list(layer.state_dict())
    specialize(layer, plus, 1.0)
    torch.testing.assert_close(layer(x), before + 1, rtol=0, atol=0)
    assert type(layer).__name__ == "Linear"
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == names


def test_calls_stack_and_equal_ones_share_a_class():
    layers = [nn.Identity() for _ in range(3)]
    for layer in layers[:2]:
        specialize(layer, plus, 1.0)
        specialize(layer, plus, 2.0)
    specialize(layers[2], plus, 2.0)
    zero = torch.zeros(1)
    assert [float(layer(zero)) for layer in layers] == [3.0, 3.0, 2.0]
    assert type(layers[0]) is type(layers[1]) is not type(layers[2])
