"""Causal convolutions over a few tokens, each dimension by its own weights.

B batch, T tokens, C channels, W tokens of a window.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lmtrain.models.documents import Documents, EarlierTokens
from lmtrain.models.embeddings import previous


def causal_convolution(
    x: Float[Tensor, "B T C"], weight: Float[Tensor, "C 1 W"], documents: Documents | None = None
) -> Float[Tensor, "B T C"]:
    """Mix each token with the W - 1 before it in its document: [B, T, C] -> [B, T, C]; the last weight is its own."""
    taps = weight.squeeze(1).to(x.dtype).unbind(-1)  # W of [C]
    mixed = x * taps[-1]
    if isinstance(documents, EarlierTokens):
        for shifted, tap in zip(documents.earlier(x, len(taps) - 1), reversed(taps[:-1]), strict=True):
            mixed = mixed + shifted * tap
        return mixed
    if documents is None:
        padded = F.pad(x.mT, (len(taps) - 1, 0))
        return F.conv1d(padded, weight.to(x.dtype), groups=x.shape[-1]).mT
    for tap in reversed(taps[:-1]):
        x = previous(x, documents)
        mixed = mixed + x * tap
    return mixed


def fill_convolution(weight: Float[Tensor, "C 1 W"], generator: torch.Generator) -> None:
    """Fill with uniform numbers within 1 / sqrt(W), as torch's convolutions start."""
    limit = weight.shape[-1] ** -0.5
    drawn = torch.empty(weight.shape, device=generator.device).uniform_(-limit, limit, generator=generator)
    with torch.no_grad():
        weight.copy_(drawn)
