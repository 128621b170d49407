import pytest
import torch
from torch import nn

from lmtrain.models.head import OutputHead


def test_logits_are_products_with_the_weight():
    weight, hidden = torch.randn(11, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(OutputHead(weight)(hidden), hidden @ weight.T)


def test_a_soft_cap_bends_in_fp32():
    weight, hidden = torch.randn(11, 4, dtype=torch.bfloat16), 100 * torch.randn(2, 3, 4, dtype=torch.bfloat16)
    logits = OutputHead(weight, 2.0)(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, 2 * torch.tanh((hidden @ weight.T).float() / 2))


def test_the_weight_is_the_parameter_itself_and_gets_the_gradient():
    linear = nn.Linear(4, 11, bias=False)
    head = OutputHead(linear.weight)
    assert head.weight is linear.weight
    head(torch.randn(1, 4)).sum().backward()
    assert linear.weight.grad is not None


def test_a_head_is_a_value():
    with pytest.raises(AttributeError):
        OutputHead(torch.ones(2, 2)).soft_cap = 1.0
