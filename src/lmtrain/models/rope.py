"""Rotary position embedding (arXiv 2104.09864), with stretches to long contexts.

T tokens, K head width, R rotated pairs of a head: K / 2 unless a share of the head rotates.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_above_zero
from lmtrain.models.documents import Documents, EarlierTokens, token_positions


class RotaryScaling(ABC):
    """A change of the rotations for contexts beyond the one first trained on."""

    follows_length = False  # whether rotations differ by the number of tokens of a text
    reread_beyond: int | None = None  # tokens of a text with which those before rotate in another way

    @property
    def attention_scale(self) -> float:
        """Return the factor of rotated queries and keys each."""
        return 1.0

    @abstractmethod
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        """Return radians per token of a text of `num_tokens`, where base^-exponents is plain: [R] -> [R]."""


@final
@dataclass(frozen=True, kw_only=True)
class RopeScaling(RotaryScaling):
    """Slow rotations down for contexts beyond the one first trained on; the defaults are those of Llama 3.2.

    Wavelengths above original_context_tokens / low_frequency_factor are stretched by `factor`, those below
    original_context_tokens / high_frequency_factor are kept, those between are blended.
    """

    factor: float = 32.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context_tokens: int = 8192

    def __post_init__(self) -> None:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        check_above_zero(usual="1.0", rope_scaling__factor=self.factor, rope_scaling__low_frequency_factor=low)
        check_above_zero(usual="8192", rope_scaling__original_context_tokens=self.original_context_tokens)
        if not low < high < math.inf:
            raise ConfigurationError(
                f"model.rope_scaling.high_frequency_factor={high} is not above "
                f"model.rope_scaling.low_frequency_factor={low}. Did you mean {4 * low}?"
            )

    @override
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        del num_tokens
        frequencies = 1.0 / base**exponents
        turns = self.original_context_tokens * frequencies / (2 * math.pi)
        kept = (turns - self.low_frequency_factor) / (self.high_frequency_factor - self.low_frequency_factor)
        kept = kept.clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@final
@dataclass(frozen=True, kw_only=True)
class LinearRopeScaling(RotaryScaling):
    """Slow every rotation down by `factor`: position interpolation, arXiv 2306.15595."""

    factor: float

    def __post_init__(self) -> None:
        check_above_zero(usual="1.0", rope_scaling__factor=self.factor)

    @override
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        del num_tokens
        return 1.0 / base**exponents / self.factor


@final
@dataclass(frozen=True, kw_only=True)
class DynamicRopeScaling(RotaryScaling):
    """Raise the base with the length of a text beyond `original_context_tokens` (NTK-aware interpolation)."""

    factor: float
    original_context_tokens: int
    follows_length = True

    def __post_init__(self) -> None:
        check_above_zero(usual="2.0", rope_scaling__factor=self.factor)
        check_above_zero(usual="8192", rope_scaling__original_context_tokens=self.original_context_tokens)

    @override
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        width, longest = 2 * len(exponents), max(num_tokens, self.original_context_tokens)
        growth = self.factor * torch.tensor(longest) / self.original_context_tokens - (self.factor - 1)
        return 1.0 / (base * growth ** (width / (width - 2))).to(exponents.device) ** exponents


@final
@dataclass(frozen=True, kw_only=True)
class YarnRopeScaling(RotaryScaling):
    """Slow down by `factor` the pairs of few turns within the original context: YaRN, arXiv 2309.00071 section 3.

    Pairs of more than `fast_turns` keep their speed, those of fewer than `slow_turns` have the whole factor, pairs
    between are blended, from whole pair to whole pair if `whole_pairs`. `attention_factor` None is the paper's,
    0.1 ln(factor) + 1.
    """

    factor: float
    original_context_tokens: int
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    whole_pairs: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_above_zero(usual="4.0", rope_scaling__factor=self.factor)
        check_above_zero(usual="8192", rope_scaling__original_context_tokens=self.original_context_tokens)
        check_above_zero(usual="32.0", rope_scaling__fast_turns=self.fast_turns)
        check_above_zero(usual="1.0", rope_scaling__slow_turns=self.slow_turns)
        check_above_zero(usual="null", rope_scaling__attention_factor=self.attention_factor)

    @property
    @override
    def attention_scale(self) -> float:
        return yarn_scale(self.factor) if self.attention_factor is None else self.attention_factor

    @override
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        del num_tokens
        periods, width = base**exponents, 2 * len(exponents)
        first, last = (self._pair(turns, base, width) for turns in (self.fast_turns, self.slow_turns))
        if self.whole_pairs:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        index = torch.arange(len(exponents), dtype=torch.float32, device=exponents.device)
        slowed = ((index - first) / (last - first or 0.001)).clamp(0, 1)
        return 1.0 / (self.factor * periods) * slowed + 1.0 / periods * (1 - slowed)

    def _pair(self, turns: float, base: float, width: int) -> float:
        """Return which pair turns so often within the original context."""
        return width * math.log(self.original_context_tokens / (turns * 2 * math.pi)) / (2 * math.log(base))


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's scale of queries and keys (equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


@final
@dataclass(frozen=True, kw_only=True)
class LongRopeScaling(RotaryScaling):
    """Slow each pair down by its own factor (LongRoPE, arXiv 2402.13753): `long_factors` beyond the original context.

    Texts within it have `short_factors`. `attention_factor` scales queries and keys in both.
    """

    short_factors: Sequence[float]
    long_factors: Sequence[float]
    original_context_tokens: int
    attention_factor: float = 1.0
    follows_length = True

    def __post_init__(self) -> None:
        check_above_zero(usual="4096", rope_scaling__original_context_tokens=self.original_context_tokens)
        check_above_zero(usual="1.0", rope_scaling__attention_factor=self.attention_factor)
        for factor in (*self.short_factors, *self.long_factors):
            check_above_zero(usual="1.0", rope_scaling__long_factors=factor)

    @property
    def reread_beyond(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Return the original context."""
        return self.original_context_tokens

    @property
    @override
    def attention_scale(self) -> float:
        return self.attention_factor

    @override
    def frequencies(self, exponents: Float[Tensor, " R"], *, base: float, num_tokens: int) -> Float[Tensor, " R"]:
        for name, factors in (("long", self.long_factors), ("short", self.short_factors)):
            if len(factors) != len(exponents):
                raise ConfigurationError(
                    f"model.rope_scaling.{name}_factors must have one factor per rotated pair of a head, "
                    f"{len(exponents)}, got {len(factors)}."
                )
        factors = self.long_factors if num_tokens > self.original_context_tokens else self.short_factors
        return 1.0 / (torch.tensor(list(factors), dtype=torch.float32, device=exponents.device) * base**exponents)


SCALINGS: Final = (RopeScaling, LinearRopeScaling, DynamicRopeScaling, YarnRopeScaling, LongRopeScaling)


def rope_frequencies(
    rotated_width: int,
    *,
    base: float,
    scaling: RotaryScaling | None = None,
    num_tokens: int = 0,
    device: torch.device | None = None,
) -> Float[Tensor, " R"]:
    """Return radians per token, fp32 [R] for a width of 2 R, on `device` (None: torch's default)."""
    exponents = torch.arange(0, rotated_width, 2, dtype=torch.int64, device=device).float() / rotated_width
    if scaling is None:
        return 1.0 / base**exponents
    return scaling.frequencies(exponents, base=base, num_tokens=num_tokens)


@final
class RotaryEmbedding(nn.Module):
    """Tables of rotations, by token and pair of rotated dimensions of a head."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self, max_context_tokens: int, rotated_width: int, *, base: float, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        check_above_zero(usual="10000.0", rope_base=base)
        self.dimensions = (max_context_tokens, rotated_width)
        self.base, self.scaling = base, scaling
        cos, sin = self._tables(max_context_tokens, device=None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self, num_tokens: int, documents: Documents | None = None
    ) -> tuple[Float[Tensor, "*B T 1 R"], Float[Tensor, "*B T 1 R"]]:
        """Return cosines and sines, fp32 [T, 1, R] of the first tokens, or [B, T, 1, R] by document."""
        cos, sin = self.cos, self.sin
        if self.scaling is not None and self.scaling.follows_length:
            if isinstance(documents, EarlierTokens):
                pieces = [self._tables(end, first=end - num, device=cos.device) for num, end in documents.lengths]
                cos, sin = (torch.cat(parts)[None, :, None] for parts in zip(*pieces, strict=True))  # [1, N, 1, R]
                return cos, sin
            cos, sin = self._tables(num_tokens, device=cos.device)
        if documents is None:
            return cos[:num_tokens].unsqueeze(1), sin[:num_tokens].unsqueeze(1)
        positions = token_positions(documents).unsqueeze(-1)  # [B, T, 1]
        return F.embedding(positions, cos), F.embedding(positions, sin)

    def initialize_weights(self) -> None:
        """Fill the tables in place, the same on every device."""
        tables = self._tables(self.dimensions[0], device=torch.device("cpu"))
        for buffer, table in zip((self.cos, self.sin), tables, strict=True):
            buffer.copy_(table)

    def _tables(self, num_tokens: int, *, first: int = 0, device: torch.device | None) -> tuple[Tensor, Tensor]:
        """Return those of a text of `num_tokens`, from its `first` on."""
        frequencies = rope_frequencies(
            self.dimensions[1], base=self.base, scaling=self.scaling, num_tokens=num_tokens, device=device
        )
        angles = torch.outer(torch.arange(first, num_tokens, dtype=torch.float32, device=device), frequencies)
        scale = 1.0 if self.scaling is None else self.scaling.attention_scale
        return (angles.cos(), angles.sin()) if scale == 1.0 else (angles.cos() * scale, angles.sin() * scale)


def rotate(
    x: Float[Tensor, "B T H K"],
    cos: Float[Tensor, "*b T 1 R"],
    sin: Float[Tensor, "*b T 1 R"],
    *,
    neighbours: bool = False,
) -> Float[Tensor, "B T H K"]:
    """Rotate the first 2 R dimensions in pairs, in fp32: [B, T, H, K], [T, 1, R] twice -> [B, T, H, K].

    Pairs are (i, i + R), or of `neighbours` (2 i, 2 i + 1). The others stay.
    """
    rotated_width = 2 * cos.shape[-1]
    if rotated_width < x.shape[-1]:
        turned = rotate(x[..., :rotated_width], cos, sin, neighbours=neighbours)
        return torch.cat((turned, x[..., rotated_width:]), dim=-1)
    if neighbours:
        first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return turned.flatten(-2).to(x.dtype)
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
