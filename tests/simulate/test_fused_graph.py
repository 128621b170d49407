"""Graphs whose memory can be told by hand, in numbers of 4 bytes."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lmtrain.simulate.compiled_graph import fused_peak

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


def test_views_share_their_memory():
    def halves(x, w):
        left, right = (x @ w).chunk(2, dim=1)
        return left * right

    assert peak(halves, held=[True, True]) == N + N // 2
