import pytest
import torch
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError
from lmtrain.models.feed_forward import GELU, SquaredReLU, SwiGLU, build_feed_forward


def test_swiglu_equals_its_formula_with_the_gate_first():
    layer = SwiGLU(8, 12)
    x = torch.randn(2, 3, 8)
    gate, up = layer.gate_up.weight[:12], layer.gate_up.weight[12:]
    expected = (F.silu(x @ gate.T) * (x @ up.T)) @ layer.down.weight.T
    torch.testing.assert_close(layer(x), expected)


def test_squared_relu_grows_with_the_square():
    layer = SquaredReLU(8, 12)
    x = torch.randn(2, 8)
    torch.testing.assert_close(layer(3 * x), 9 * layer(x), atol=1e-5, rtol=1e-5)


def test_gelu_uses_the_tanh_form():
    layer = GELU(8, 12)
    x = torch.randn(2, 8)
    torch.testing.assert_close(layer(x), layer.down(torch.nn.GELU(approximate="tanh")(layer.up(x))))


def test_activation_names_build_their_layer():
    assert isinstance(build_feed_forward("swiglu", 8, 12), SwiGLU)
    assert isinstance(build_feed_forward("relu_squared", 8, 12), SquaredReLU)


def test_unknown_activation_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"model\.activation=swigl .*Did you mean 'swiglu'"):
        build_feed_forward("swigl", 8, 12)
