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


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_is_torch_s_by_tanh_or_exact(approximate):
    layer = GELU(8, 12, approximate=approximate)
    x = 3 * torch.randn(64, 8)
    torch.testing.assert_close(layer(x), layer.down(torch.nn.GELU(approximate=approximate)(layer.up(x))))


def test_an_unknown_approximation_of_gelu_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"gelu_approximate=tan is not tanh or none\. Did you mean 'tanh'"):
        GELU(8, 12, approximate="tan")  # pyright: ignore[reportArgumentType]


def test_activation_names_build_their_layer():
    assert isinstance(build_feed_forward("swiglu", 8, 12), SwiGLU)
    assert isinstance(build_feed_forward("relu_squared", 8, 12), SquaredReLU)


def test_unknown_activation_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"model\.activation=swigl .*Did you mean 'swiglu'"):
        build_feed_forward("swigl", 8, 12)
