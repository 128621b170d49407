"""Graphs whose memory can be told by hand, in numbers of 4 bytes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lmtrain.simulate.compiled_graph import fused_peak, input_bytes

N = 1024  # numbers of a 32 x 32 matrix


def graph_of(function, *, num_inputs, shape=(32, 32)):
    with FakeTensorMode():
        return make_fx(function)(*(torch.zeros(shape) for _ in range(num_inputs))).graph


def peak(function, *, held, shape=(32, 32)):
    """Return the most numbers at once beyond the inputs."""
    return fused_peak(graph_of(function, num_inputs=len(held), shape=shape), is_held=held) / 4


def test_what_lies_between_two_kernels_has_no_memory():
    def long_chain(x):
        return (((x * 2).sin() + 1).exp().relu()) * x

    assert peak(long_chain, held=[True]) == N


def test_a_product_reads_and_writes_memory():
    assert peak(lambda x, w: (x * 2) @ w, held=[True, True]) == 2 * N


def test_an_input_goes_when_it_was_last_read():
    def twice(x, w):
        return (x @ w) @ w

    assert peak(twice, held=[True, True]) == 2 * N
    assert peak(twice, held=[False, True]) == N, "x is gone before the second product"


def test_a_fused_kernel_writes_over_an_input_that_nothing_reads_later():
    def activated(x, w):
        return (x @ w).relu()

    assert peak(activated, held=[True, True]) == N
    assert peak(lambda x, w: ((y := x @ w).relu(), y), held=[True, True]) == 2 * N, "the product is returned too"


def test_what_is_put_together_elsewhere_writes_over_nothing():
    def swapped(x, w):
        left, right = (x @ w).chunk(2, dim=1)
        return torch.cat([right, left], dim=1)

    assert peak(swapped, held=[True, True]) == 2 * N


def test_a_product_never_writes_over_what_it_reads():
    assert peak(lambda x, w: (x @ w) @ w, held=[True, True]) == 2 * N


def test_a_reduction_leaves_what_is_small():
    assert peak(lambda x: x * x.square().mean(), held=[True]) == N + 1


def test_views_share_their_memory():
    def halves(x, w):
        left, right = (x @ w).chunk(2, dim=1)
        return left * right

    assert peak(halves, held=[True, True]) == N + N // 2


def test_a_kernel_of_another_library_is_not_fused():
    @torch.library.custom_op("fused_graph_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    assert peak(lambda x: twice(x + 1).relu(), held=[True]) == 2 * N


@pytest.mark.parametrize("side", [32, 64])
def test_inputs_are_counted_by_the_start_of_their_name(side):
    graph = graph_of(lambda x, y: x + y, num_inputs=2, shape=(side, side))
    assert input_bytes(graph, "x") == 4 * side * side
    assert input_bytes(graph, "") == 2 * input_bytes(graph, "y")
    assert input_bytes(graph, "tangents") == 0
