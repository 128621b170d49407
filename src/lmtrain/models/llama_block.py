"""One layer of a Llama: attention, then a feed-forward, each normalised before and added after.

B batch, T tokens, D width, Hkv key and value heads, K head width.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmtrain.models.embeddings import Smear
from lmtrain.models.feed_forward import SwiGLU
from lmtrain.models.llama_settings import FeedForwardSettings, NormSettings
from lmtrain.models.mixture_of_experts import MixtureOfExperts
from lmtrain.models.norms import RMSNorm
from lmtrain.models.residual_stream import Mix
from lmtrain.models.self_attention import AttentionSettings, Positions, SelfAttention
from lmtrain.models.weight_init import fill_linear


@final
@dataclass(frozen=True, kw_only=True)
class BlockSettings:
    """A layer's parts, alike in all layers of a model."""

    attention: AttentionSettings
    feed_forward: FeedForwardSettings
    norm: NormSettings


@final
class LlamaBlock(nn.Module):
    """Add attention and the feed-forward to the residual stream.

    `window_tokens`, `value_embedding`: as in SelfAttention. `embedding_skip` first mixes the stream with its first
    value, by two learned scalars with these initial values; None does not.
    """

    def __init__(
        self,
        width: int,
        settings: BlockSettings,
        *,
        window_tokens: int | None = None,
        value_embedding: bool = False,
        embedding_skip: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.embedding_skip = Mix(*embedding_skip) if embedding_skip else None
        self.attention_norm = settings.norm.build(width)
        self.self_attention = SelfAttention(
            width, settings.attention, window_tokens=window_tokens, value_embedding=value_embedding
        )
        self.feed_forward_norm = settings.norm.build(width)
        self.feed_forward = settings.feed_forward.build(width)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        embedded: Float[Tensor, "B T D"],
        positions: Positions,
        value_embedding: Float[Tensor, "B T V"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Transform the stream: [B, T, D], its first value [B, T, D], and SelfAttention's further inputs -> [B, T, D].

        Beside it comes the feed-forward's penalty, a sum over tokens; None where it has none.
        """
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, embedded)
        x = x + self.self_attention(self.attention_norm(x), positions, value_embedding)
        normed = self.feed_forward_norm(x)
        if isinstance(self.feed_forward, MixtureOfExperts):
            mixed, penalty = self.feed_forward(normed)
            return x + mixed, penalty
        return x + self.feed_forward(normed), None

    def initialize_weights(self, generator: torch.Generator, *, std: float, output_std: float) -> None:
        """Fill in place; `output_std` is of the two matrices into the residual stream."""
        fill_linear(self.self_attention.qkv, std=std, generator=generator)
        if isinstance(self.feed_forward, MixtureOfExperts):
            fill_linear(self.self_attention.output, std=output_std, generator=generator)
            self.feed_forward.initialize_weights(generator, std=std, output_std=output_std)
        else:
            matrix_in = self.feed_forward.gate_up if isinstance(self.feed_forward, SwiGLU) else self.feed_forward.up
            fill_linear(matrix_in, std=std, generator=generator)
            for linear in (self.self_attention.output, self.feed_forward.down):
                fill_linear(linear, std=output_std, generator=generator)
        if self.self_attention.value_gate is not None:
            fill_linear(self.self_attention.value_gate, std=0.0, generator=generator)
        for module in self.modules():
            if isinstance(module, RMSNorm | Smear | Mix):
                module.initialize_weights()
