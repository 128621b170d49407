import pytest
import torch

from lmtrain.models.attention import auto, blocked, causal_mask, eager, sdpa


def qkv(*, num_heads=4, num_kv_heads=2, num_tokens=24, head_width=16):
    return (
        torch.randn(2, num_heads, num_tokens, head_width, requires_grad=True),
        torch.randn(2, num_kv_heads, num_tokens, head_width, requires_grad=True),
        torch.randn(2, num_kv_heads, num_tokens, head_width, requires_grad=True),
    )


@pytest.mark.parametrize("kernel", [sdpa, blocked, auto])
@pytest.mark.parametrize("window_tokens", [None, 1, 5, 24, 100])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_kernel_equals_the_reference_with_its_gradients(kernel, window_tokens, num_kv_heads):
    inputs = qkv(num_kv_heads=num_kv_heads)
    results = [function(*inputs, window_tokens=window_tokens) for function in (kernel, eager)]
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad(result.square().sum(), inputs) for result in results]
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kernel", [eager, sdpa, blocked, auto])
def test_window_of_one_returns_the_values(kernel):
    q, k, v = qkv(num_kv_heads=4)
    torch.testing.assert_close(kernel(q, k, v, window_tokens=1), v)


@pytest.mark.parametrize("kernel", [eager, sdpa, blocked, auto])
@pytest.mark.parametrize("window_tokens", [None, 6])
def test_later_tokens_change_nothing_before_them(kernel, window_tokens):
    q, k, v = (tensor.detach() for tensor in qkv())
    before = kernel(q, k, v, window_tokens=window_tokens)
    for tensor in (q, k, v):
        tensor[:, :, 10:] = torch.randn_like(tensor[:, :, 10:])
    after = kernel(q, k, v, window_tokens=window_tokens)
    assert torch.equal(before[:, :, :10], after[:, :, :10])
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:])


@pytest.mark.parametrize("kernel", [eager, sdpa, blocked])
def test_token_outside_the_window_is_not_seen(kernel):
    q, k, v = (tensor.detach() for tensor in qkv())
    before = kernel(q, k, v, window_tokens=4)
    v[:, :, 0] = 1e3
    after = kernel(q, k, v, window_tokens=4)
    assert torch.equal(before[:, :, 4:], after[:, :, 4:])


def test_mask_counts_the_token_itself():
    mask = causal_mask(5, window_tokens=2, device=torch.device("cpu"))
    assert mask.sum(dim=1).tolist() == [1, 2, 2, 2, 2]


def test_reference_keeps_the_dtype_of_its_input():
    q, k, v = (tensor.detach().bfloat16() for tensor in qkv())
    assert eager(q, k, v).dtype == torch.bfloat16
