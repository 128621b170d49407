"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"), without dropout.

Learned positions, LayerNorm before each sublayer, biases, GELU by tanh, and a head tied to the token embedding.
B batch, T tokens, D width, H heads, K head width, V vocabulary.
"""

import math
from typing import cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.models.attention.base import Attention, Seen, what_layers_see
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.base import shape_of
from lmtrain.models.dimensions import check_context, check_heads, check_not_negative, check_positive
from lmtrain.models.documents import Documents, num_positions, token_positions
from lmtrain.models.feed_forward import GELU, GeluApproximate
from lmtrain.models.head import OutputHead
from lmtrain.models.stages import LayerStream, StagedModel
from lmtrain.models.weight_init import fill_constant, fill_linear, fill_normal


@final
class GPT2Block(nn.Module):
    """Add attention and the feed-forward to the residual stream."""

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        feed_forward_width: int,
        attention: Attention,
        norm_eps: float,
        biases: bool = True,
        gelu_approximate: GeluApproximate = "tanh",
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention = attention
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps, bias=biases)
        self.qkv = nn.Linear(width, 3 * width, bias=biases)
        self.output = nn.Linear(width, width, bias=biases)
        self.feed_forward_norm = nn.LayerNorm(width, eps=norm_eps, bias=biases)
        self.feed_forward = GELU(width, feed_forward_width, biases=biases, approximate=gelu_approximate)

    @property
    def fused_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix in a fused weight: queries, keys, values."""
        return {"qkv.weight": (self.output.in_features,) * 3}

    def forward(self, x: Float[Tensor, "B T D"], documents: Seen = None) -> Float[Tensor, "B T D"]:
        """Transform the residual stream: [B, T, D] -> [B, T, D]."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.num_heads, -1))  # [B, T, 3, H, K]
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))  # [B, H, T, K] each
        mixed = self.attention(q, k, v, documents=documents)  # [B, H, T, K]
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.feed_forward_norm(x))


@final
class GPT2(StagedModel):
    """A decoder of GPT-2's shape; `feed_forward_width` None is four times the width.

    Without `biases`, of projections and norms alike, with its own head or with the exact GELU
    (`gelu_approximate="none"`), it is nanoGPT's relative of GPT-2.
    """

    begins_with, ends_with = ("token_embedding", "position_embedding"), ("final_norm", "head")

    def __init__(
        self,
        *,
        width: int,
        num_layers: int,
        num_heads: int,
        vocab_size: int,
        max_context_tokens: int,
        feed_forward_width: int | None = None,
        attention: Attention = sdpa,
        norm_eps: float = 1e-5,
        biases: bool = True,
        gelu_approximate: GeluApproximate = "tanh",
        tie_embeddings: bool = True,
        init_std: float = 0.02,
    ) -> None:
        super().__init__()
        feed_forward_width = 4 * width if feed_forward_width is None else feed_forward_width
        check_positive(width=width, num_layers=num_layers, num_heads=num_heads, feed_forward_width=feed_forward_width)
        check_positive(vocab_size=vocab_size, max_context_tokens=max_context_tokens)
        check_heads(width=width, num_heads=num_heads, is_rotary=False)
        check_not_negative(norm_eps=norm_eps, init_std=init_std)
        self.vocab_size, self.max_context_tokens = vocab_size, max_context_tokens
        self.init_std, self.attention = init_std, attention
        self.attention_shape = AttentionShape(num_heads=num_heads, head_width=width // num_heads)
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(max_context_tokens, width)
        self.layers = nn.ModuleList(
            GPT2Block(
                width=width,
                num_heads=num_heads,
                feed_forward_width=feed_forward_width,
                attention=attention,
                norm_eps=norm_eps,
                biases=biases,
                gelu_approximate=gelu_approximate,
            )
            for _ in range(num_layers)
        )
        self.final_norm = nn.LayerNorm(width, eps=norm_eps, bias=biases)
        self.head = None if tie_embeddings else nn.Linear(width, vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """Return the layers."""
        return self.layers

    @property
    def last_norm(self) -> nn.Module:
        """Return the norm before the head."""
        return self.final_norm

    def features(
        self, tokens: Int[Tensor, "B T"], documents: Documents | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Run the layers and the last norm: [B, T] -> [B, T, D], and no penalty."""
        stream = self.begin(tokens, documents)
        return self.end(self.through(stream, range(len(self.layers)), tokens, documents))

    @override
    def begin(self, tokens: Int[Tensor, "B T"], documents: Documents | None) -> LayerStream:
        num_tokens = tokens.shape[1]
        check_context(num_positions(tokens, documents), self.max_context_tokens)
        if documents is None:
            table = self.position_embedding.weight
            positions = table if num_tokens == len(table) else table[:num_tokens]  # [T, D]
        else:
            positions = self.position_embedding(token_positions(documents))  # [B, T, D]
        embedded = self.token_embedding(tokens)
        x = embedded + positions.to(embedded.dtype)
        return LayerStream(x, x, x)

    @override
    def through(
        self, stream: LayerStream, numbers: range, tokens: Int[Tensor, "B T"], documents: Documents | None
    ) -> LayerStream:
        x = stream.x
        seen = what_layers_see(self.attention, tokens, documents, windows=(None,))
        for index in numbers:
            x = self.layers[index](x, seen)
        return stream._replace(x=x)

    @override
    def end(self, stream: LayerStream) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        return self.final_norm(stream.x), None

    def output_head(self) -> OutputHead:
        """Return the head's weight, or the token embedding's where they are tied."""
        return OutputHead(self.token_embedding.weight if self.head is None else self.head.weight)

    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter in place; projections into the residual stream start smaller by sqrt(2 layers)."""
        residual_std = self.init_std / math.sqrt(2 * len(self.layers))
        for table in (self.token_embedding, self.position_embedding):
            fill_normal(table.weight, std=self.init_std, generator=generator)
        for layer in self.layers:
            block = cast(GPT2Block, layer)
            for linear in (block.qkv, block.feed_forward.up):
                fill_linear(linear, std=self.init_std, generator=generator)
            for linear in (block.output, block.feed_forward.down):
                fill_linear(linear, std=residual_std, generator=generator)
        if self.head is not None:
            fill_linear(self.head, std=self.init_std, generator=generator)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                fill_constant(module.weight, 1.0)
                if cast(Tensor | None, module.bias) is not None:
                    fill_constant(module.bias, 0.0)

    def shape(self) -> ModelShape:
        """Count parameters by kind; a tied head is a matmul too."""
        return shape_of(
            self,
            num_tied_head_parameters=self.token_embedding.weight.numel() if self.head is None else 0,
            attention=(self.attention_shape,) * len(self.layers),
        )
