import pytest
import torch
from torch.nn import functional as F

from lmtrain.models.attention.base import KernelTarget
from lmtrain.models.attention.eager import eager
from tests.models.attention.kernel_checks import qkv, rows_of_documents


def test_reference_equals_the_formula_of_torch_in_fp64():
    q, k, v = qkv(dtype=torch.float64, num_kv_heads=4)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(eager(q, k, v), expected, rtol=0, atol=1e-12)


def test_each_group_of_heads_shares_keys_and_values():
    q, k, v = qkv(num_heads=4, num_kv_heads=2)
    for head in range(4):
        alone = eager(q[:, head : head + 1], k[:, head // 2 : head // 2 + 1], v[:, head // 2 : head // 2 + 1])
        torch.testing.assert_close(eager(q, k, v)[:, head : head + 1], alone)


def test_a_document_is_what_it_would_be_alone():
    q, k, v = qkv(num_tokens=24)
    documents = torch.tensor([[0] * 10 + [1] * 14, [0] * 24], dtype=torch.int32)
    together = eager(q, k, v, documents=documents)
    torch.testing.assert_close(together[:1, :, 10:], eager(q[:1, :, 10:], k[:1, :, 10:], v[:1, :, 10:]))
    torch.testing.assert_close(together[1:], eager(q[1:], k[1:], v[1:]))


def test_documents_and_a_window_both_hold():
    q, k, v = qkv(num_kv_heads=4)
    documents = rows_of_documents(24)
    torch.testing.assert_close(eager(q, k, v, window_tokens=1, documents=documents), v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_reference_keeps_the_dtype_of_its_input(dtype):
    q, k, v = qkv(dtype=dtype)
    assert eager(q, k, v).dtype == dtype
    assert "eager" in eager.describe(KernelTarget(device_type="cpu", dtype=dtype))
