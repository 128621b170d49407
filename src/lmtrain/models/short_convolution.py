"""Causal convolutions over a few tokens, each dimension by its own weights, and a layer of one between two gates.

The layer is LFM2's (arXiv 2511.23404). B batch, T tokens, D width, C channels, W tokens of a window.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.accounting.options.ranges import require_count
from lmtrain.models.documents import Documents, EarlierTokens
from lmtrain.models.embeddings import previous
from lmtrain.models.self_attention import Positions
from lmtrain.models.weight_init import fill_constant, fill_linear


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


@final
@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """The tokens of a convolution, and whether its layer has biases."""

    convolution_tokens: int = 3
    biases: bool = False

    def __post_init__(self) -> None:
        require_count("model.recurrent_layers.convolution_tokens", self.convolution_tokens)

    def build(self, width: int, *, norm_eps: float) -> "GatedConvolution":
        """Build a layer."""
        del norm_eps
        return GatedConvolution(width, self)


@final
class GatedConvolution(nn.Module):
    """Gate, convolve over a few tokens, and gate again."""

    def __init__(self, width: int, settings: ShortConvolution) -> None:
        super().__init__()
        self.inputs = nn.Linear(width, 3 * width, bias=settings.biases)  # the gates before and after, and values
        self.convolution = nn.Parameter(torch.empty(width, 1, settings.convolution_tokens))
        self.convolution_bias = nn.Parameter(torch.zeros(width)) if settings.biases else None
        self.output = nn.Linear(width, width, bias=settings.biases)

    def vectors(self) -> list[Any]:
        """Return the numbers of each channel."""
        return [self.convolution, self.convolution_bias]

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts."""
        return AttentionShape(1, self.convolution.shape[0], state_flops=2 * self.convolution.numel())

    def forward(self, x: Float[Tensor, "B T D"], positions: Positions, value_embedding: None = None) -> Tensor:
        """Mix tokens: [B, T, D] -> [B, T, D]."""
        del value_embedding
        before, after, values = self.inputs(x).chunk(3, dim=-1)
        convolution, bias = self.vectors()
        mixed = causal_convolution(before * values, convolution, positions.documents)
        if bias is not None:
            mixed = mixed + bias.to(mixed.dtype)
        return self.output(after * mixed)

    def initialize_inputs(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all but the matrix into the residual stream."""
        fill_linear(self.inputs, std=std, generator=generator)
        fill_convolution(self.convolution, generator)
        if self.convolution_bias is not None:
            fill_constant(self.convolution_bias, 0.0)
