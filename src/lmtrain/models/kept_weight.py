"""A weight as matrix products take it: a copy in their format, kept beside the trained master weight.

The gradient reaches the master in the master's own format, as if the cast had happened in the forward pass.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override


class _Kept(torch.autograd.Function):
    """The copy going forward, the master going back."""

    @staticmethod
    @override
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, master: Float[Tensor, "*shape"], copy: Float[Tensor, "*shape"]
    ) -> Float[Tensor, "*shape"]:
        ctx.dtype = master.dtype
        return copy.view_as(copy)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient.to(ctx.dtype), None


def kept_weight(master: Tensor, copy: Tensor) -> Tensor:
    """Return `copy`, with the rounded values of `master`; gradients go to the master."""
    return _Kept.apply(master, copy)
