"""Checks of a recurrent layer, the same for each kind."""

import torch

from lmtrain.models.self_attention import Positions

WIDTH = 24


def at(documents=None):
    return Positions(torch.empty(0), torch.empty(0), documents)


def tokens(num):
    return torch.randn(2, num, WIDTH, generator=torch.Generator().manual_seed(1))


def require_same_layer(ours, theirs, names, num_tokens):
    """Compare outputs and all gradients with a layer of transformers; `names` are its parameters by ours."""
    ours_in, theirs_in = tokens(num_tokens).requires_grad_(), tokens(num_tokens).requires_grad_()
    made, expected = ours(ours_in, at()), theirs(theirs_in)
    torch.testing.assert_close(made, expected, atol=5e-6, rtol=1e-5)  # fp32, another order of sums
    made.square().mean().backward()
    expected.square().mean().backward()
    torch.testing.assert_close(ours_in.grad, theirs_in.grad, atol=5e-6, rtol=1e-5)
    for name, other in names.items():
        gradient, reference = ours.get_parameter(name).grad, theirs.get_parameter(other).grad
        torch.testing.assert_close(gradient, reference, atol=5e-6, rtol=1e-4)


def require_documents_apart(ours):
    """Require that each document of a packed row is as alone, and moves the others by exactly nothing."""
    x = tokens(150)
    lengths = (10, 60, 30, 50)
    documents = torch.arange(4).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    packed = ours(x, at(documents))
    alone = torch.cat([ours(part, at()) for part in x.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, atol=5e-6, rtol=1e-5)
    changed = x.clone()
    changed[:, 10:70] += 1.0
    again = ours(changed, at(documents))
    assert torch.equal(again[:, :10], packed[:, :10])
    assert torch.equal(again[:, 70:], packed[:, 70:])
