from types import SimpleNamespace

import torch

from lmtrain.models import feed_forward as module
from lmtrain.models.feed_forward import has_kernel, swiglu


def test_on_a_cpu_it_is_the_product_as_torch_differentiates_it():
    gate_up = torch.randn(3, 10, dtype=torch.float64, requires_grad=True)
    gate, up = gate_up.detach().chunk(2, dim=-1)
    assert not has_kernel(gate_up)
    torch.testing.assert_close(swiglu(gate_up), gate * gate.sigmoid() * up)
    assert torch.autograd.gradcheck(swiglu, gate_up)


def test_double_precision_on_a_gpu_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(module, "CAN_LAUNCH", True)
    assert has_kernel(SimpleNamespace(is_cuda=True, dtype=torch.bfloat16))
    assert not has_kernel(SimpleNamespace(is_cuda=True, dtype=torch.float64))
