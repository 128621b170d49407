"""A layer with a product of its own multiplies parts as it multiplies the whole."""

import torch
from torch import nn

from lmtrain.parallel.tensor_layers import HasProduct
from tests.precision.test_float8 import converted


def test_a_layer_in_fp8_has_a_product_and_a_plain_one_torch_s_alone() -> None:
    layer = converted().get_submodule("layers.0.feed_forward.down")
    assert isinstance(layer, HasProduct)
    assert isinstance(layer, nn.Linear)
    assert not isinstance(nn.Linear(16, 16), HasProduct)
    x, weight = torch.randn(2, 3, layer.in_features), layer.weight.detach().bfloat16()
    bias = torch.randn(layer.out_features)
    half = layer.out_features // 2
    assert half % layer.multiple == 0
    whole, first = layer.product(x, weight, bias), layer.product(x, weight[:half], bias[:half])
    near = torch.nn.functional.linear(x.bfloat16(), weight, bias.bfloat16())
    assert (whole - near).norm() < 0.06 * near.norm(), "rounded to 8 bits"
    assert (first - near[..., :half]).norm() < 0.06 * near.norm()
    with torch.no_grad():
        assert torch.equal(layer.product(x.bfloat16(), weight, bias.bfloat16()), near), "bf16 in evaluation"
