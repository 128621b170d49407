"""One layer of a Llama: attention, then a feed-forward, each normalised before and added after.

B batch, T tokens, D width, Hkv key and value heads, K head width.
"""

from typing import final

import torch
from torch import Tensor, nn

from lmtrain.models.attention import Attention
from lmtrain.models.embeddings import Mix, Smear
from lmtrain.models.feed_forward import Activation, SwiGLU, build_feed_forward
from lmtrain.models.norms import RMSNorm
from lmtrain.models.self_attention import SelfAttention
from lmtrain.models.weight_init import fill_linear


@final
class LlamaBlock(nn.Module):
    """Add what attention and the feed-forward make of the residual stream to it.

    Settings are those of Llama. `embedding_skip` first mixes the stream with its first value, by scalars that start as
    the identity.
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
        key_smear: bool = False,
        value_embedding: bool = False,
        embedding_skip: bool = False,
    ) -> None:
        super().__init__()
        self.embedding_skip = Mix(1.0, 0.0) if embedding_skip else None
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
            key_smear=key_smear,
            value_embedding=value_embedding,
        )
        self.feed_forward_norm = RMSNorm(width, eps=norm_eps, learned=norm_weights)
        self.feed_forward = build_feed_forward(activation, width, feed_forward_width)

    def forward(
        self, x: Tensor, embedded: Tensor, cos: Tensor, sin: Tensor, value_embedding: Tensor | None = None
    ) -> Tensor:
        """Transform the stream: [B, T, D], its first value [B, T, D], and what SelfAttention takes -> [B, T, D]."""
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, embedded)
        x = x + self.self_attention(self.attention_norm(x), cos, sin, value_embedding)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def initialize_weights(self, generator: torch.Generator, *, std: float, output_std: float) -> None:
        """Fill in place; `output_std` is of the two matrices that add to the residual stream."""
        matrix_in = self.feed_forward.gate_up if isinstance(self.feed_forward, SwiGLU) else self.feed_forward.up
        for linear in (self.self_attention.qkv, matrix_in):
            fill_linear(linear, std=std, generator=generator)
        for linear in (self.self_attention.output, self.feed_forward.down):
            fill_linear(linear, std=output_std, generator=generator)
        for module in self.modules():
            if isinstance(module, RMSNorm | Smear | Mix):
                module.initialize_weights()
