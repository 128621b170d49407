"""FLOPs and bytes of operations, by hand."""

import pytest
import torch
from torch.nn import functional as F

from lmtrain.simulate.kernel_costs import Formats, kernel_of
from lmtrain.simulate.kernel_costs import kernels_of as kernels_of_operation
from lmtrain.simulate.live_memory import Operations


class Kernels(Operations):
    """Keeps the kernels of all operations."""

    def __init__(self):
        super().__init__()
        self.found = []

    def take(self, func, arguments, named, made):
        kernel = kernel_of(func, arguments, named, made, phase="forward")
        self.found += [] if kernel is None else [kernel]


def kernels_of(function):
    with Kernels() as kernels:
        function()
    return kernels.found


def test_a_product_reads_both_operands_and_writes_its_result_once():
    one, two = torch.zeros(8, 32, dtype=torch.bfloat16), torch.zeros(32, 16, dtype=torch.bfloat16)
    (kernel,) = kernels_of(lambda: one @ two)
    assert (kernel.flops, kernel.num_bytes, kernel.dtype) == (2 * 8 * 32 * 16, 2 * (8 * 32 + 32 * 16 + 8 * 16), "bf16")


@pytest.mark.parametrize(("fp8_but", "expected"), [(None, "bf16"), (16, "bf16"), (17, "fp8")])
def test_a_linear_layers_product_is_in_fp8_after_a_cast_and_the_heads_is_not(fp8_but, expected):
    one, two = torch.zeros(8, 32, dtype=torch.bfloat16), torch.zeros(32, 16, dtype=torch.bfloat16)
    formats = Formats(fp8_but=fp8_but)
    *casts, product = kernels_of_operation(
        torch.ops.aten.mm.default, [one, two], {}, one @ two, phase="forward", formats=formats
    )
    assert product.dtype == expected
    assert [cast.num_bytes for cast in casts] == ([2.5 * 2 * (8 * 32 + 32 * 16)] if expected == "fp8" else [])


@pytest.mark.parametrize("is_causal", [True, False])
def test_attention_counts_half_of_its_products_where_the_mask_leaves_half(is_causal):
    query = torch.zeros(1, 2, 64, 16, dtype=torch.bfloat16, requires_grad=True)
    found = kernels_of(
        lambda: F.scaled_dot_product_attention(query, query, query, is_causal=is_causal).sum().backward()
    )
    forward, backward = (kernel.flops for kernel in found if kernel.dtype)
    assert forward == 4 * 2 * 64 * 64 * 16 / (2 if is_causal else 1)
    assert backward == 2.5 * forward
