"""What goes into a token's vector besides itself: its pair with the token before, and that token's vector.

Hashed n-gram lookups: arXiv 1607.04606 section 3 (hashing) and 2501.16975 (n-gram input embeddings).
B batch, T tokens, D width, V vocabulary.
"""

from typing import final

import torch
from torch import Tensor, nn

from lmtrain.models.weight_init import fill_constant, fill_normal

# Odd multipliers below 2^31: products with any token id stay well inside int64.
_PREVIOUS_MULTIPLIER = 0x27D4EB2F
_TOKEN_MULTIPLIER = 0x165667B1


def bigram_buckets(tokens: Tensor, *, num_buckets: int) -> Tensor:
    """Hash (previous token, token) into buckets: int64 [B, T] -> [B, T]; the first token has no previous one."""
    mixed = (previous(tokens + 1) * _PREVIOUS_MULTIPLIER) ^ (tokens * _TOKEN_MULTIPLIER)
    return (mixed ^ (mixed >> 15)) % num_buckets


def previous(x: Tensor) -> Tensor:
    """Shift by one token, zeros coming first: [B, T, ...] -> [B, T, ...]."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


@final
class Smear(nn.Module):
    """Add the previous token's vector, by a learned weight per dimension that starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix: [B, T, D] -> [B, T, D]."""
        return x + (previous(x) * self.weight).to(x.dtype)

    def initialize_weights(self) -> None:
        """Start with no smear."""
        fill_constant(self.weight, 0.0)


@final
class Mix(nn.Module):
    """Add up two streams by two learned scalars, which start at the given values."""

    def __init__(self, initial_first: float, initial_second: float) -> None:
        super().__init__()
        self.initial = (initial_first, initial_second)
        self.first = nn.Parameter(torch.full((1,), initial_first))  # not []: FSDP shards no scalars
        self.second = nn.Parameter(torch.full((1,), initial_second))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Mix: [B, T, D] twice -> [B, T, D] in the first one's dtype."""
        return (self.first * first + self.second * second).to(first.dtype)

    def initialize_weights(self) -> None:
        """Start at the initial values."""
        fill_constant(self.first, self.initial[0])
        fill_constant(self.second, self.initial[1])


@final
class InputEmbedding(nn.Module):
    """Turn tokens into vectors: a table, and by options a table of hashed pairs added to it, and a smear of both."""

    def __init__(self, vocab_size: int, width: int, *, num_bigram_buckets: int = 0, smear: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, width)
        self.bigram = nn.Embedding(num_bigram_buckets, width) if num_bigram_buckets else None
        self.smear = Smear(width) if smear else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed: int64 [B, T] -> [B, T, D]."""
        x = self.token(tokens)
        if self.bigram is not None:
            x = x + self.bigram(bigram_buckets(tokens, num_buckets=self.bigram.num_embeddings))
        return x if self.smear is None else self.smear(x)

    def initialize_weights(self, generator: torch.Generator, *, std: float) -> None:
        """Fill in place; pairs start at zero, so that one that was never seen adds nothing."""
        fill_normal(self.token.weight, std=std, generator=generator)
        if self.bigram is not None:
            fill_constant(self.bigram.weight, 0.0)
        if self.smear is not None:
            self.smear.initialize_weights()
