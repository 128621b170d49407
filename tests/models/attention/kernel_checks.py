"""What every attention kernel is held to: the eager reference, in values and gradients.

Tolerances: kernels add up T products in other orders, so fp32 results part by some T * 2^-24 and gradients, which pass
through two products more, by ten times that. bf16 keeps 8 bits: the reference is then taken in fp32 from the same
rounded inputs, and a kernel may be off by some roundings of its output.
"""

import torch
from hypothesis import strategies as st

from lmtrain.models.attention.eager import eager

FORWARD = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
BACKWARD = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def qkv(
    *, batch=2, num_heads=4, num_kv_heads=2, num_tokens=24, head_width=16, dtype=torch.float32, seed=0, gradients=True
):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, heads, num_tokens, head_width, generator=generator).to(dtype).requires_grad_(gradients)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )


def rows_of_documents(num_tokens, *, batch=2, mean_tokens=6, seed=0):
    """Return int32 [B, T]: documents of about `mean_tokens`; the first row has at least one token of each of two."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.rand(batch, num_tokens, generator=generator) < 1 / mean_tokens
    starts[:, 0] = False
    if num_tokens > 1:
        starts[0, num_tokens // 2] = True
    return starts.cumsum(1).to(torch.int32)


@st.composite
def cases(draw, *, max_tokens=70, head_widths=(8, 16, 24)):
    """Draw shapes with any ratio of heads, a window or none, and documents or none."""
    groups, num_kv_heads = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
    num_tokens = draw(st.integers(1, max_tokens))
    seed = draw(st.integers(0, 2**16))
    shapes = {
        "batch": draw(st.integers(1, 3)),
        "num_heads": groups * num_kv_heads,
        "num_kv_heads": num_kv_heads,
        "num_tokens": num_tokens,
        "head_width": draw(st.sampled_from(head_widths)),
        "seed": seed,
    }
    window_tokens = draw(st.one_of(st.none(), st.integers(1, max_tokens + 5)))
    mean_tokens = draw(st.sampled_from((None, 1.5, 6, 40)))
    documents = None
    if mean_tokens is not None:
        documents = rows_of_documents(num_tokens, batch=shapes["batch"], mean_tokens=mean_tokens, seed=seed)
    return shapes, window_tokens, documents


def check_against_eager(kernel, inputs, *, window_tokens=None, documents=None, gradients=True, prepare=True):
    """Hold a kernel to the reference, given the raw documents and, as models do, what it prepared of them."""
    dtype, num_tokens = inputs[0].dtype, inputs[0].shape[2]
    reference = [x.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_() for x in inputs]
    expected = eager(*reference, window_tokens=window_tokens, documents=documents)
    wanted = torch.autograd.grad(expected.square().sum(), reference)
    given = [documents]
    if prepare:
        windows = dict.fromkeys((window_tokens, None, 3))
        device = inputs[0].device
        given.append(kernel.prepare(documents, num_tokens=num_tokens, windows=windows, device=device))
    for form in given:
        result = kernel(*inputs, window_tokens=window_tokens, documents=form)
        assert result.dtype == dtype
        assert result.shape == inputs[0].shape
        close(result, expected, FORWARD[dtype])
        if gradients:
            found = torch.autograd.grad(result.to(expected.dtype).square().sum(), inputs)
            for gradient, correct in zip(found, wanted, strict=True):
                close(gradient, correct, BACKWARD[dtype])


def close(result, expected, tolerance):
    """Compare by the largest difference against the largest value."""
    difference = (result.to(expected.dtype) - expected).abs().max()
    assert difference <= tolerance * max(1.0, expected.abs().max().item()), float(difference)
