"""Root-mean-square normalisation (arXiv 1910.07467), computed in fp32 for inputs of any format."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.models.dimensions import check_not_negative
from lmtrain.models.weight_init import fill_constant


def rms_norm(x: Float[Tensor, "*B D"], *, eps: float) -> Float[Tensor, "*B D"]:
    """Scale the last dim to a root mean square of 1: [..., D] -> [..., D], same dtype."""
    return F.rms_norm(x.float(), (x.shape[-1],), eps=eps).to(x.dtype)


@final
class RMSNorm(nn.Module):
    """Scale the last dim to a root mean square of 1, then by a weight, learned or fixed at 1."""

    def __init__(self, width: int, *, eps: float, learned: bool = True) -> None:
        super().__init__()
        check_not_negative(norm_eps=eps)
        self.weight = nn.Parameter(torch.ones(width)) if learned else None
        self.eps = eps

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Normalise: [..., D] -> [..., D], same dtype."""
        if self.weight is None:
            return rms_norm(x, eps=self.eps)
        return (F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps) * self.weight.float()).to(x.dtype)

    def initialize_weights(self) -> None:
        """Start at 1."""
        if self.weight is not None:
            fill_constant(self.weight, 1.0)
