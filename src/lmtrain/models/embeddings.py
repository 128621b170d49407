"""Additions to a token's vector: its pair with the token before, and the earlier token's vector.

Hashed n-gram lookups: arXiv 1607.04606 section 3 (hashing) and 2501.16975 (n-gram input embeddings).
B batch, T tokens, D width, V vocabulary.
"""

from typing import final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from lmtrain.models.documents import Documents, EarlierTokens, starts_document
from lmtrain.models.residual_stream import RMSNorm
from lmtrain.models.weight_init import fill_constant, fill_normal

# Odd multipliers below 2^31: products with any token id stay well inside int64.
_PREVIOUS_MULTIPLIER = 0x27D4EB2F
_TOKEN_MULTIPLIER = 0x165667B1


def bigram_buckets(
    tokens: Int[Tensor, "B T"], documents: Documents | None = None, *, num_buckets: int
) -> Int[Tensor, "B T"]:
    """Hash (previous token, token) into buckets: int64 [B, T] -> [B, T]; a first token has no previous one."""
    mixed = (previous(tokens + 1, documents) * _PREVIOUS_MULTIPLIER) ^ (tokens * _TOKEN_MULTIPLIER)
    return (mixed ^ (mixed >> 15)) % num_buckets


def previous(x: Shaped[Tensor, "B T *D"], documents: Documents | None = None) -> Shaped[Tensor, "B T *D"]:
    """Shift by one token, zeros coming first in each document: [B, T, ...] -> [B, T, ...]."""
    if isinstance(documents, EarlierTokens):
        return documents.previous(x)
    shifted = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
    if documents is None:
        return shifted
    first = starts_document(documents)  # [B, T]
    return shifted.masked_fill(first if x.ndim == 2 else first.unsqueeze(-1), 0)


def smeared(
    x: Float[Tensor, "B T D"], weight: Float[Tensor, " D"], documents: Documents | None = None
) -> Float[Tensor, "B T D"]:
    """Add the previous token's vector, by a weight per dimension: [B, T, D] -> [B, T, D]."""
    return x + (previous(x, documents) * weight).to(x.dtype)


@final
class Smear(nn.Module):
    """Add the previous token's vector, by a learned weight per dimension, zero at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Float[Tensor, "B T D"], documents: Documents | None = None) -> Float[Tensor, "B T D"]:
        """Mix: [B, T, D] -> [B, T, D]."""
        return smeared(x, self.weight, documents)

    def initialize_weights(self) -> None:
        """Start with no smear."""
        fill_constant(self.weight, 0.0)


@final
class GatedSmear(nn.Module):
    """Add the previous token's vector as far as a gate on the token's own first dimensions opens; it starts closed."""

    def __init__(self, gate_width: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(gate_width))
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "B T D"], documents: Documents | None = None) -> Float[Tensor, "B T D"]:
        """Mix: [B, T, D] -> [B, T, D]."""
        opened = torch.sigmoid((x[..., : self.gate.numel()] * self.gate).sum(dim=-1, keepdim=True))  # [B, T, 1]
        return x + (self.weight * opened * previous(x, documents)).to(x.dtype)

    def initialize_weights(self) -> None:
        """Start with no smear."""
        fill_constant(self.gate, 0.0)
        fill_constant(self.weight, 0.0)


@final
class InputEmbedding(nn.Module):
    """Turn tokens into vectors: a table, and by options a table of hashed pairs added to it, a norm, and a smear."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        num_bigram_buckets: int = 0,
        norm: RMSNorm | None = None,
        smear: Smear | GatedSmear | None = None,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, width)
        self.bigram = nn.Embedding(num_bigram_buckets, width) if num_bigram_buckets else None
        self.norm = norm
        self.smear = smear

    def forward(self, tokens: Int[Tensor, "B T"], documents: Documents | None = None) -> Float[Tensor, "B T D"]:
        """Embed: int64 [B, T] -> [B, T, D]."""
        x = self.token(tokens)
        if self.bigram is not None:
            x = x + self.bigram(bigram_buckets(tokens, documents, num_buckets=self.bigram.num_embeddings))
        if self.norm is not None:
            x = self.norm(x)
        return x if self.smear is None else self.smear(x, documents)

    def initialize_weights(self, generator: torch.Generator, *, std: float) -> None:
        """Fill in place; pairs start at zero: an unseen one adds nothing."""
        fill_normal(self.token.weight, std=std, generator=generator)
        if self.bigram is not None:
            fill_constant(self.bigram.weight, 0.0)
        for part in (self.norm, self.smear):
            if part is not None:
                part.initialize_weights()
