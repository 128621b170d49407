import torch
from torch.nn import functional as F

from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.sdpa import SDPA, kernel_picked
from tests.models.attention.kernel_checks import qkv


def test_torch_is_asked_which_kernel_runs():
    assert kernel_picked(KernelTarget(device_type="cpu", dtype=torch.float32)) == "flash"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert kernel_picked(KernelTarget(device_type="cpu", dtype=torch.float32)) == "plain products"


def test_no_mask_is_built_for_a_whole_context(monkeypatch):
    masks = []
    attend = F.scaled_dot_product_attention

    def record(*tensors, attn_mask=None, **options):
        masks.append(attn_mask)
        return attend(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    inputs = qkv()
    SDPA()(*inputs)
    SDPA()(*inputs, window_tokens=24)
    SDPA()(*inputs, window_tokens=23)
    assert [mask is None for mask in masks] == [True, True, False]
