"""Llama 3 (arXiv 2407.21783), and by options its relatives: Qwen 3's query-key norm, and what speed runs have found.

Every option is off by default, which is exactly Llama 3. Value embeddings, embedding skips, smears and zero starts are
ideas of the modded-nanogpt speed runs and of nanochat; the soft cap is Gemma 2's (arXiv 2408.00118).
B batch, T tokens, D width, V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.accounting.model_shape import ModelShape
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention import Attention, sdpa
from lmtrain.models.base import LanguageModel, shape_of
from lmtrain.models.dimensions import check_context, check_positive
from lmtrain.models.embeddings import InputEmbedding
from lmtrain.models.feed_forward import Activation
from lmtrain.models.llama_block import LlamaBlock
from lmtrain.models.norms import RMSNorm
from lmtrain.models.rope import RopeScaling, RotaryEmbedding
from lmtrain.models.weight_init import fill_constant, fill_linear


@final
class Llama(LanguageModel):
    """A decoder with rotary positions, grouped-query attention, RMSNorm and gated feed-forward layers.

    `num_kv_heads`, `head_width`, `qk_norm_scale`: as in SelfAttention. `logit_soft_cap` c bends logits to
    c tanh(logits / c). `value_embedding_layers` are the layers, from 0, that add a vector per token to their values.
    `embedding_init_std` None is `init_std`. `zero_init_outputs` starts every layer as the identity.
    Raises: ConfigurationError for dimensions that do not divide, and for options that contradict each other.
    """

    def __init__(
        self,
        *,
        width: int,
        num_layers: int,
        num_heads: int,
        feed_forward_width: int,
        vocab_size: int,
        max_context_tokens: int,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        attention: Attention = sdpa,
        activation: Activation = "swiglu",
        rope_base: float = 500_000.0,
        rope_scaling: RopeScaling | None = None,
        norm_eps: float = 1e-5,
        norm_weights: bool = True,
        tie_embeddings: bool = False,
        qk_norm: bool = False,
        qk_norm_scale: float | None = None,
        logit_soft_cap: float | None = None,
        embedding_norm: bool = False,
        embedding_skip: bool = False,
        embedding_smear: bool = False,
        key_smear: bool = False,
        num_bigram_buckets: int = 0,
        value_embedding_layers: Sequence[int] = (),
        init_std: float = 0.02,
        embedding_init_std: float | None = None,
        zero_init_outputs: bool = False,
        zero_init_head: bool = False,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, feed_forward_width=feed_forward_width)
        check_positive(vocab_size=vocab_size, max_context_tokens=max_context_tokens)
        _check_options(logit_soft_cap, num_bigram_buckets, tie_embeddings=tie_embeddings, zero_init_head=zero_init_head)
        _check_layers(value_embedding_layers, num_layers)
        self.vocab_size, self.max_context_tokens = vocab_size, max_context_tokens
        self.logit_soft_cap = logit_soft_cap
        self.init_std = init_std
        self.embedding_init_std = init_std if embedding_init_std is None else embedding_init_std
        self.output_init_std = 0.0 if zero_init_outputs else init_std / math.sqrt(2 * num_layers)
        self.head_init_std = 0.0 if zero_init_head else init_std
        block = partial(
            LlamaBlock,
            width=width,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_width=head_width,
            feed_forward_width=feed_forward_width,
            attention=attention,
            activation=activation,
            norm_eps=norm_eps,
            norm_weights=norm_weights,
            qk_norm=qk_norm,
            qk_norm_scale=qk_norm_scale,
            key_smear=key_smear,
            embedding_skip=embedding_skip,
        )
        norm = partial(RMSNorm, width, eps=norm_eps, learned=norm_weights)
        self.embedding = InputEmbedding(vocab_size, width, num_bigram_buckets=num_bigram_buckets, smear=embedding_smear)
        self.embedding_norm = norm() if embedding_norm else None
        self.layers = nn.ModuleList(block(value_embedding=i in value_embedding_layers) for i in range(num_layers))
        value_width, head_width = self._layers[0].self_attention.value_width, self._layers[0].self_attention.head_width
        tables = {str(layer): nn.Embedding(vocab_size, value_width) for layer in value_embedding_layers}
        self.value_embeddings = nn.ModuleDict(tables)
        self.rope = RotaryEmbedding(max_context_tokens, head_width, base=rope_base, scaling=rope_scaling)
        self.final_norm = norm()
        self.head = None if tie_embeddings else nn.Linear(width, vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """Return the layers."""
        return self.layers

    def hidden_states(self, tokens: Tensor) -> Tensor:
        """Run the layers and the last norm: [B, T] -> [B, T, D]."""
        num_tokens = tokens.shape[1]
        check_context(num_tokens, self.max_context_tokens)
        cos, sin = self.rope(num_tokens)
        x = self.embedding(tokens)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        embedded = x
        for index, block in enumerate(self.layers):
            name = str(index)
            value_embedding = self.value_embeddings[name](tokens) if name in self.value_embeddings else None
            x = block(x, embedded, cos, sin, value_embedding)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the next token: [B, T, D] -> [B, T, V]; in fp32 where a soft cap bends them."""
        scores = F.linear(hidden, self.embedding.token.weight) if self.head is None else self.head(hidden)
        if self.logit_soft_cap is None:
            return scores
        return self.logit_soft_cap * torch.tanh(scores.float() / self.logit_soft_cap)

    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter and buffer in place; without zero_init_outputs, depth narrows outputs as in GPT-2."""
        self.embedding.initialize_weights(generator, std=self.embedding_init_std)
        for block in self._layers:
            block.initialize_weights(generator, std=self.init_std, output_std=self.output_init_std)
        for table in self.value_embeddings.values():
            fill_constant(cast(nn.Embedding, table).weight, 0.0)  # values start as plain Llama's
        for norm in (self.embedding_norm, self.final_norm):
            if norm is not None:
                norm.initialize_weights()
        self.rope.initialize_weights()
        if self.head is not None:
            fill_linear(self.head, std=self.head_init_std, generator=generator)

    def shape(self) -> ModelShape:
        """Count parameters by kind."""
        return shape_of(
            self,
            num_tied_head_parameters=self.embedding.token.weight.numel() if self.head is None else 0,
            attention=tuple(block.self_attention.attention_shape for block in self._layers),
        )

    @property
    def _layers(self) -> list[LlamaBlock]:
        return [cast(LlamaBlock, layer) for layer in self.layers]


def _check_options(
    logit_soft_cap: float | None, num_bigram_buckets: int, *, tie_embeddings: bool, zero_init_head: bool
) -> None:
    if logit_soft_cap is not None and logit_soft_cap <= 0:
        raise ConfigurationError(f"model.logit_soft_cap={logit_soft_cap} is not above 0; null is no cap.")
    if num_bigram_buckets < 0:
        raise ConfigurationError(f"model.num_bigram_buckets={num_bigram_buckets} is below 0; 0 is no bigrams.")
    if tie_embeddings and zero_init_head:
        raise ConfigurationError("model.zero_init_head=true needs a head of its own: set model.tie_embeddings=false.")


def _check_layers(value_embedding_layers: Sequence[int], num_layers: int) -> None:
    for layer in value_embedding_layers:
        if not 0 <= layer < num_layers:
            raise ConfigurationError(
                f"model.value_embedding_layers={list(value_embedding_layers)} names layer {layer} of "
                f"model.num_layers={num_layers}; layers are 0 to {num_layers - 1}."
            )
