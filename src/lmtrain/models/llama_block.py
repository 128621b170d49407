"""One layer of a Llama: attention, then a feed-forward, each normalised before and added after.

B batch, T tokens, D width, Hkv key and value heads, K head width.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import Attention
from lmtrain.models.embeddings import Smear
from lmtrain.models.feed_forward import Activation, SquaredReLU, SwiGLU, build_feed_forward
from lmtrain.models.mixture_of_experts import Experts, MixtureOfExperts
from lmtrain.models.norms import RMSNorm
from lmtrain.models.residual_stream import Mix
from lmtrain.models.self_attention import NormOver, Positions, SelfAttention
from lmtrain.models.weight_init import fill_linear


@final
class LlamaBlock(nn.Module):
    """Add what attention and the feed-forward make of the residual stream to it.

    Settings are those of Llama and of SelfAttention. `embedding_skip` first mixes the stream with its first value, by
    two learned scalars that start as given; None does not.
    """

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        feed_forward_width: int,
        attention: Attention,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        activation: Activation = "swiglu",
        norm_eps: float = 1e-5,
        norm_weights: bool = True,
        qk_norm: bool = False,
        qk_norm_scale: float | None = None,
        qk_norm_over: NormOver = "head",
        key_smear: bool = False,
        value_embedding: bool = False,
        value_gate_width: int | None = None,
        window_tokens: int | None = None,
        attention_multiplier: float = 1.0,
        embedding_skip: tuple[float, float] | None = None,
        experts: Experts | None = None,
    ) -> None:
        super().__init__()
        self.embedding_skip = Mix(*embedding_skip) if embedding_skip else None
        self.attention_norm = RMSNorm(width, eps=norm_eps, learned=norm_weights)
        self.self_attention = SelfAttention(
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_width=head_width,
            attention=attention,
            norm_eps=norm_eps,
            qk_norm=qk_norm,
            qk_norm_scale=qk_norm_scale,
            qk_norm_over=qk_norm_over,
            key_smear=key_smear,
            value_embedding=value_embedding,
            value_gate_width=value_gate_width,
            window_tokens=window_tokens,
            attention_multiplier=attention_multiplier,
        )
        self.feed_forward_norm = RMSNorm(width, eps=norm_eps, learned=norm_weights)
        self.feed_forward = _feed_forward(activation, width, feed_forward_width, experts)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        embedded: Float[Tensor, "B T D"],
        positions: Positions,
        value_embedding: Float[Tensor, "B T V"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Transform the stream: [B, T, D], its first value [B, T, D], and what SelfAttention takes -> [B, T, D].

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
        """Fill in place; `output_std` is of the two matrices that add to the residual stream."""
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


def _feed_forward(
    activation: str, width: int, feed_forward_width: int, experts: Experts | None
) -> SwiGLU | SquaredReLU | MixtureOfExperts:
    if experts is None:
        return build_feed_forward(activation, width, feed_forward_width)
    if activation != "swiglu":
        raise ConfigurationError(
            f"model.activation={activation} has no effect with model.experts, which are swiglu; nearest valid: swiglu."
        )
    return MixtureOfExperts(width, feed_forward_width, experts=experts)
