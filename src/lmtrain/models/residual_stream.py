"""RMS normalisation (arXiv 1910.07467) and the scales of the residual stream."""

from dataclasses import dataclass
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
    """Scale the last dim to a root mean square of 1, then by a weight, learned or fixed at 1.

    A weight `zero_centered` is what a factor has above 1, as in Gemma.
    """

    def __init__(self, width: int, *, eps: float, learned: bool = True, zero_centered: bool = False) -> None:
        super().__init__()
        check_not_negative(norm_eps=eps)
        self.width, self.start = width, 0.0 if zero_centered else 1.0
        self.weight = nn.Parameter(torch.full((width,), self.start)) if learned else None
        self.eps = eps

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Normalise: [..., D] -> [..., D], same dtype."""
        if self.weight is None:
            return rms_norm(x, eps=self.eps)
        return (F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps) * self.factor()).to(x.dtype)

    def factor(self) -> Float[Tensor, " D"]:
        """Return what the learned weight multiplies by, in fp32."""
        assert self.weight is not None
        return self.weight.float() if self.start else 1.0 + self.weight.float()

    def initialize_weights(self) -> None:
        """Start with factors of 1."""
        if self.weight is not None:
            fill_constant(self.weight, self.start)


@final
class Mix(nn.Module):
    """Add up two streams by two learned scalars, initially at the given values."""

    def __init__(self, initial_first: float, initial_second: float) -> None:
        super().__init__()
        self.initial = (initial_first, initial_second)
        self.first = nn.Parameter(torch.full((1,), initial_first))  # not []: FSDP shards no scalars
        self.second = nn.Parameter(torch.full((1,), initial_second))

    def forward(self, first: Float[Tensor, "*B D"], second: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Mix: [B, T, D] twice -> [B, T, D] in the first one's dtype."""
        return (self.first * first + self.second * second).to(first.dtype)

    def initialize_weights(self) -> None:
        """Start at the initial values."""
        fill_constant(self.first, self.initial[0])
        fill_constant(self.second, self.initial[1])


@final
class Backout(nn.Module):
    """Take the stream of the middle layer away at the end, by one learned scalar, initially at the given value."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.weight = nn.Parameter(torch.full((1,), initial))

    def forward(self, x: Float[Tensor, "*B D"], middle: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Subtract: [B, T, D] twice -> [B, T, D] in the first one's dtype."""
        return x - (self.weight * middle).to(x.dtype)

    def initialize_weights(self) -> None:
        """Start at the initial value."""
        fill_constant(self.weight, self.initial)


@dataclass(frozen=True, kw_only=True)
class SkipStart:
    """Where the scalars of embedding skips start, on lines from the first layer to the last; defaults: no skip."""

    first_stream: float = 1.0
    last_stream: float = 1.0
    first_embedded: float = 0.0
    last_embedded: float = 0.0

    def of_layers(self, num_layers: int) -> list[tuple[float, float]]:
        """Return each layer's factors of the stream and of its first value."""
        depths = [layer / max(num_layers - 1, 1) for layer in range(num_layers)]
        return [
            (
                self.first_stream + (self.last_stream - self.first_stream) * depth,
                self.first_embedded + (self.last_embedded - self.first_embedded) * depth,
            )
            for depth in depths
        ]
