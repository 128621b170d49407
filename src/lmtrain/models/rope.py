"""Rotary position embedding (arXiv 2104.09864), in the half-split layout, with Llama 3's stretch to long contexts.

T tokens, K head width.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_above_zero
from lmtrain.models.documents import Documents, token_positions


@final
@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Slow rotations down for contexts beyond the one first trained on; the defaults are those of Llama 3.2.

    Wavelengths above original_context_tokens / low_frequency_factor are stretched by `factor`, those below
    original_context_tokens / high_frequency_factor are kept, those between are blended.
    """

    factor: float = 32.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context_tokens: int = 8192

    def __post_init__(self) -> None:
        """Raise ConfigurationError for numbers without a rotation."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        check_above_zero(usual="1.0", rope_scaling__factor=self.factor, rope_scaling__low_frequency_factor=low)
        check_above_zero(usual="8192", rope_scaling__original_context_tokens=self.original_context_tokens)
        if not low < high < math.inf:
            raise ConfigurationError(
                f"model.rope_scaling.high_frequency_factor={high} is not above "
                f"model.rope_scaling.low_frequency_factor={low}. Did you mean {4 * low}?"
            )

    def stretch(self, frequencies: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """Return slower rotations: radians per token [K / 2] -> [K / 2]."""
        turns = self.original_context_tokens * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        kept = kept.clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@final
@dataclass(frozen=True, kw_only=True)
class LinearRopeScaling:
    """Slow every rotation down by `factor`: position interpolation, arXiv 2306.15595."""

    factor: float

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a factor without a rotation."""
        check_above_zero(usual="1.0", rope_scaling__factor=self.factor)

    def stretch(self, frequencies: Float[Tensor, " R"]) -> Float[Tensor, " R"]:
        """Return slower rotations: radians per token [K / 2] -> [K / 2]."""
        return frequencies / self.factor


def rope_frequencies(
    head_width: int,
    *,
    base: float,
    scaling: RopeScaling | LinearRopeScaling | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, " R"]:
    """Return radians per token, fp32 [K / 2], on `device` (None: torch's default)."""
    exponent = torch.arange(0, head_width, 2, dtype=torch.int64, device=device).float() / head_width
    frequencies = 1.0 / base**exponent
    return frequencies if scaling is None else scaling.stretch(frequencies)


@final
class RotaryEmbedding(nn.Module):
    """Tables of rotations, by token and pair of head dimensions."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        max_context_tokens: int,
        head_width: int,
        *,
        base: float,
        scaling: RopeScaling | LinearRopeScaling | None = None,
    ) -> None:
        super().__init__()
        check_above_zero(usual="10000.0", rope_base=base)
        self.dimensions = (max_context_tokens, head_width)
        self.base, self.scaling = base, scaling
        cos, sin = self._tables(device=None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, num_tokens: int, documents: Documents | None = None
    ) -> tuple[Float[Tensor, "*B T 1 R"], Float[Tensor, "*B T 1 R"]]:
        """Return cosines and sines, fp32 [T, 1, K / 2] of the first tokens, or [B, T, 1, K / 2] by document."""
        if documents is None:
            return self.cos[:num_tokens].unsqueeze(1), self.sin[:num_tokens].unsqueeze(1)
        positions = token_positions(documents).unsqueeze(-1)  # [B, T, 1]
        return F.embedding(positions, self.cos), F.embedding(positions, self.sin)

    def initialize_weights(self) -> None:
        """Fill the tables in place, the same on every device."""
        for buffer, table in zip((self.cos, self.sin), self._tables(device=torch.device("cpu")), strict=True):
            buffer.copy_(table)

    def _tables(self, *, device: torch.device | None) -> tuple[Tensor, Tensor]:
        max_context_tokens, head_width = self.dimensions
        frequencies = rope_frequencies(head_width, base=self.base, scaling=self.scaling, device=device)
        angles = torch.outer(torch.arange(max_context_tokens, dtype=torch.float32, device=device), frequencies)
        return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "B T H K"], cos: Float[Tensor, "*b T 1 R"], sin: Float[Tensor, "*b T 1 R"]
) -> Float[Tensor, "B T H K"]:
    """Rotate each pair (i, i + K/2) by its angle, in fp32: [B, T, H, K], [T, 1, K / 2] twice -> [B, T, H, K]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
