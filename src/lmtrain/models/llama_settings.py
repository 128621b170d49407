"""Settings of a Llama in groups, one for each part; contradictions and settings without an effect are refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.models.dimensions import check_gate, check_layers, check_not_negative
from lmtrain.models.embeddings import GatedSmear, InputEmbedding, Smear
from lmtrain.models.feed_forward import Activation, SquaredReLU, SwiGLU, build_feed_forward
from lmtrain.models.mixture_of_experts import Experts, MixtureOfExperts
from lmtrain.models.residual_stream import RMSNorm, SkipStart

WINDOW, WHOLE = "S", "L"


def layer_windows(num_layers: int, *, window_tokens: int | None, pattern: str | None) -> tuple[int | None, ...]:
    """Return how many tokens each layer sees, itself included; None is all.

    `pattern` spells layers, over and over: S sees `window_tokens`, L the whole context. None gives all the window.
    """
    require_count("model.window_tokens", window_tokens)
    if pattern is None:
        return (window_tokens,) * num_layers
    check_pattern(pattern)
    if window_tokens is None:
        raise _without("window_pattern", pattern, "window_tokens", nearest="null")
    return tuple(window_tokens if pattern[i % len(pattern)] == WINDOW else None for i in range(num_layers))


def check_pattern(pattern: str) -> None:
    """Raise ConfigurationError unless a pattern is one or more letters S and L."""
    if not pattern or set(pattern) - {WINDOW, WHOLE}:
        nearest = "".join(letter for letter in pattern.upper() if letter in (WINDOW, WHOLE)) or "SSSL"
        raise ConfigurationError(
            f"model.window_pattern must be letters {WINDOW} (window) and {WHOLE} (whole context), got {pattern!r}. "
            f"Did you mean {nearest}?"
        )


@final
@dataclass(frozen=True, kw_only=True)
class NormSettings:
    """Norms of the residual stream; without `learned` weights they only scale."""

    eps: float = 1e-5
    learned: bool = True

    def build(self, width: int) -> RMSNorm:
        """Build a norm over the width."""
        return RMSNorm(width, eps=self.eps, learned=self.learned)


@final
@dataclass(frozen=True, kw_only=True)
class FeedForwardSettings:
    """A feed-forward `width` wide inside, or a mixture of experts, each as wide."""

    width: int
    activation: Activation = "swiglu"
    experts: Experts | None = None

    def __post_init__(self) -> None:
        if self.experts is not None and self.activation != "swiglu":
            raise ConfigurationError(
                f"model.activation={self.activation} has no effect with model.experts, which are swiglu. "
                "Did you mean swiglu?"
            )

    def build(self, width: int) -> SwiGLU | SquaredReLU | MixtureOfExperts:
        """Build it between residual streams of a width."""
        if self.experts is None:
            return build_feed_forward(self.activation, width, self.width)
        return MixtureOfExperts(width, self.width, experts=self.experts)


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """Additions to a token's vector: `num_buckets` of hashed pairs, a norm, a smear by weights or by a gate."""

    num_buckets: int = 0
    norm: bool = False
    smear: bool = False
    gate_width: int | None = None

    def __post_init__(self) -> None:
        check_not_negative(num_bigram_buckets=self.num_buckets)
        if self.gate_width is not None and not self.smear:
            raise _without("smear_gate_width", self.gate_width, "embedding_smear=true", nearest="null")

    def build(self, vocab_size: int, width: int, *, norm: NormSettings) -> InputEmbedding:
        """Build the table of a vocabulary and all additions to it."""
        return InputEmbedding(
            vocab_size,
            width,
            num_bigram_buckets=self.num_buckets,
            norm=norm.build(width) if self.norm else None,
            smear=self.build_smear(width),
        )

    def build_smear(self, width: int) -> Smear | GatedSmear | None:
        """Build the smear: a weight per dimension, or a gate on the first `gate_width` dimensions; or none."""
        if not self.smear:
            return None
        if self.gate_width is None:
            return Smear(width)
        check_gate("smear_gate_width", self.gate_width, width)
        return GatedSmear(self.gate_width)


@final
@dataclass(frozen=True, kw_only=True)
class SkipSettings:
    """The residual stream's way back: `embedding_skip` in every layer, and `backout` of the middle at the end."""

    embedding_skip: bool = False
    start: SkipStart | None = None
    backout: bool = False

    def __post_init__(self) -> None:
        if self.start is not None and not self.embedding_skip:
            raise _without("embedding_skip_start", self.start, "embedding_skip=true", nearest="null")

    def starts(self, num_layers: int) -> list[tuple[float, float]] | list[None]:
        """Return the start of each layer's scalars; None without a skip."""
        if not self.embedding_skip:
            return [None] * num_layers
        start = self.start or SkipStart()
        return [start.of_layer(layer, num_layers) for layer in range(num_layers)]


@final
@dataclass(frozen=True, kw_only=True)
class InitialStds:
    """Standard deviations at the start; None is `std`. Outputs, the two matrices into the stream, are narrower."""

    std: float
    num_layers: int
    embedding_std: float | None
    value_embedding: float
    head_std: float | None
    zero_outputs: bool
    tied: bool

    def __post_init__(self) -> None:
        check_not_negative(init_std=self.std, embedding_init_std=self.embedding_std, head_init_std=self.head_std)
        check_not_negative(value_embedding_init_std=self.value_embedding)
        if self.tied and self.head_std is not None:
            raise ConfigurationError(f"model.head_init_std={self.head_std} needs model.tie_embeddings=false.")

    @property
    def outputs(self) -> float:
        """Return that of outputs: 0, or narrowed by depth as in GPT-2."""
        return 0.0 if self.zero_outputs else self.std / math.sqrt(2 * self.num_layers)

    @property
    def embedding(self) -> float:
        """Return that of the token embedding."""
        return self.std if self.embedding_std is None else self.embedding_std

    @property
    def head(self) -> float:
        """Return that of the head."""
        return self.std if self.head_std is None else self.head_std


def check_values(layers: Sequence[int], num_layers: int, *, gate: int | None, init_std: float) -> None:
    """Raise ConfigurationError for value embeddings of absent layers, or for their settings without any."""
    check_layers("value_embedding_layers", layers, num_layers)
    if init_std and not layers:
        raise _without("value_embedding_init_std", init_std, "value_embedding_layers", nearest="0.0")
    if gate is not None and not layers:
        raise _without("value_gate_width", gate, "value_embedding_layers", nearest="null")


def _without(name: str, value: object, needs: str, *, nearest: str) -> ConfigurationError:
    """Return the refusal of a setting without effect for lack of another."""
    return ConfigurationError(f"model.{name}={value} has no effect without model.{needs}. Did you mean {nearest}?")
