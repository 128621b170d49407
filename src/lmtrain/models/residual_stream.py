"""Learned scalars on the residual stream: how much of it goes on, of its first value comes back, of its middle goes.

Ideas of the modded-nanogpt speed runs and of nanochat. B batch, T tokens, D width.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmtrain.models.weight_init import fill_constant


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

    def of_layer(self, layer: int, num_layers: int) -> tuple[float, float]:
        """Return a layer's (from 0) factors of the stream and of its first value."""
        depth = layer / max(num_layers - 1, 1)
        return (
            self.first_stream + (self.last_stream - self.first_stream) * depth,
            self.first_embedded + (self.last_embedded - self.first_embedded) * depth,
        )
