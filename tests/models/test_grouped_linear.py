import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lmtrain.models.mixture_of_experts import grouped_linear, has_grouped_kernel

ENDS = torch.tensor([3, 3, 10], dtype=torch.int32)  # the second group is empty


def operands(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 16, generator=generator, dtype=dtype, requires_grad=True)
    return x, torch.randn(3, 8, 16, generator=generator, dtype=dtype, requires_grad=True)


def group_by_group(x, weight):
    return torch.cat([x[:3] @ weight[0].T, x[3:] @ weight[2].T])


def test_each_group_goes_through_its_own_matrix():
    x, weight = operands()
    torch.testing.assert_close(grouped_linear(x, weight, ENDS), group_by_group(x, weight))


def test_gradients_equal_those_of_plain_products_and_an_empty_group_has_zeros():
    x, weight = operands()
    expected = torch.autograd.grad(group_by_group(x, weight).square().sum(), (x, weight))
    actual = torch.autograd.grad(grouped_linear(x, weight, ENDS).square().sum(), (x, weight))
    torch.testing.assert_close(actual, expected)
    assert not actual[1][1].any()


def test_the_operator_keeps_what_torch_asks_of_one():
    x, weight = operands()
    torch.library.opcheck(torch.ops.lmtrain.grouped_linear.default, (x, weight, ENDS))


@pytest.mark.slow
def test_it_compiles_into_one_graph():
    x, weight = operands(torch.float32)
    compiled = torch.compile(
        lambda x, weight: grouped_linear(x, weight, ENDS).relu(), fullgraph=True, dynamic=False, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(x, weight), group_by_group(x, weight).relu())


def test_the_flop_counter_counts_what_plain_products_cost():
    counts = []
    for multiply in (group_by_group, lambda x, weight: grouped_linear(x, weight, ENDS)):
        with FlopCounterMode(display=False) as counter:
            multiply(*operands()).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts == [3 * 2 * 10 * 16 * 8] * 2


def test_a_cpu_has_no_grouped_kernel():
    assert not has_grouped_kernel(*operands(torch.bfloat16))


@pytest.mark.gpu
def test_the_grouped_kernel_equals_plain_products():
    x, weight = (operand.detach().cuda().bfloat16() for operand in operands())
    torch.testing.assert_close(grouped_linear(x, weight, ENDS.cuda()), group_by_group(x, weight), atol=0.05, rtol=0.02)
