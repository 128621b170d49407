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
from jaxtyping import Float, Int
from torch import Tensor, nn

from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.models.attention.base import Attention
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.base import LanguageModel, shape_of
from lmtrain.models.dimensions import check_context, check_not_negative, check_positive
from lmtrain.models.embeddings import InputEmbedding
from lmtrain.models.feed_forward import Activation
from lmtrain.models.head import OutputHead
from lmtrain.models.llama_block import LlamaBlock
from lmtrain.models.llama_options import build_smear, check_head, check_values, skip_starts
from lmtrain.models.mixture_of_experts import Experts
from lmtrain.models.norms import RMSNorm
from lmtrain.models.residual_stream import Backout, SkipStart
from lmtrain.models.rope import LinearRopeScaling, RopeScaling, RotaryEmbedding
from lmtrain.models.self_attention import NormOver, Positions
from lmtrain.models.weight_init import fill_linear, fill_normal
from lmtrain.models.windows import layer_windows

BACKOUT_START = 0.2


@final
class Llama(LanguageModel):
    """A decoder with rotary positions, grouped-query attention, RMSNorm and gated feed-forward layers.

    `num_kv_heads`, `head_width`, `qk_norm_scale`, `qk_norm_over`, `value_gate_width`, `attention_multiplier`: as in
    SelfAttention.
    `window_tokens` is the sliding window of all layers, or of those that `window_pattern`, repeated, spells S, while L
    see the whole context. `experts` makes every feed-forward a mixture of experts, `feed_forward_width` wide each.
    `value_embedding_layers` are the layers, from 0, that add a vector per token to their values. `logit_soft_cap` c
    bends logits to c tanh(logits / c). `embedding_init_std` and `head_init_std` None are `init_std`.
    `zero_init_outputs` starts every layer as the identity; otherwise depth narrows outputs as in GPT-2.
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
        rope_scaling: RopeScaling | LinearRopeScaling | None = None,
        window_tokens: int | None = None,
        window_pattern: str | None = None,
        norm_eps: float = 1e-5,
        norm_weights: bool = True,
        tie_embeddings: bool = False,
        qk_norm: bool = False,
        qk_norm_scale: float | None = None,
        qk_norm_over: NormOver = "head",
        attention_multiplier: float = 1.0,
        logit_soft_cap: float | None = None,
        embedding_norm: bool = False,
        embedding_skip: bool = False,
        embedding_skip_start: SkipStart | None = None,
        backout: bool = False,
        embedding_smear: bool = False,
        smear_gate_width: int | None = None,
        key_smear: bool = False,
        num_bigram_buckets: int = 0,
        value_embedding_layers: Sequence[int] = (),
        value_gate_width: int | None = None,
        experts: Experts | None = None,
        init_std: float = 0.02,
        embedding_init_std: float | None = None,
        head_init_std: float | None = None,
        value_embedding_init_std: float = 0.0,
        zero_init_outputs: bool = False,
    ) -> None:
        super().__init__()
        check_positive(width=width, num_layers=num_layers, num_heads=num_heads, feed_forward_width=feed_forward_width)
        check_positive(vocab_size=vocab_size, max_context_tokens=max_context_tokens)
        check_not_negative(init_std=init_std, embedding_init_std=embedding_init_std, head_init_std=head_init_std)
        check_not_negative(num_bigram_buckets=num_bigram_buckets, value_embedding_init_std=value_embedding_init_std)
        check_head(logit_soft_cap, head_init_std, tie_embeddings=tie_embeddings)
        check_values(value_embedding_layers, num_layers, gate=value_gate_width, init_std=value_embedding_init_std)
        self.vocab_size, self.max_context_tokens = vocab_size, max_context_tokens
        self.logit_soft_cap, self.attention = logit_soft_cap, attention
        self.init_std, self.value_embedding_init_std = init_std, value_embedding_init_std
        self.embedding_init_std = init_std if embedding_init_std is None else embedding_init_std
        self.output_init_std = 0.0 if zero_init_outputs else init_std / math.sqrt(2 * num_layers)
        self.head_init_std = init_std if head_init_std is None else head_init_std
        block = partial(LlamaBlock, width=width, num_heads=num_heads, num_kv_heads=num_kv_heads, head_width=head_width)
        block = partial(block, qk_norm=qk_norm, qk_norm_scale=qk_norm_scale, qk_norm_over=qk_norm_over)
        block = partial(block, attention=attention, key_smear=key_smear, value_gate_width=value_gate_width)
        block = partial(block, feed_forward_width=feed_forward_width, activation=activation, experts=experts)
        block = partial(block, norm_eps=norm_eps, norm_weights=norm_weights, attention_multiplier=attention_multiplier)
        norm = partial(RMSNorm, width, eps=norm_eps, learned=norm_weights)
        norms = norm() if embedding_norm else None
        smear = build_smear(width, smear_gate_width, embedding_smear=embedding_smear)
        self.embedding = InputEmbedding(
            vocab_size, width, num_bigram_buckets=num_bigram_buckets, norm=norms, smear=smear
        )
        windows = layer_windows(num_layers, window_tokens=window_tokens, pattern=window_pattern)
        self.windows = tuple(dict.fromkeys(windows))
        starts = skip_starts(num_layers, embedding_skip_start, embedding_skip=embedding_skip)
        with_values = [layer in value_embedding_layers for layer in range(num_layers)]
        self.layers = nn.ModuleList(
            block(window_tokens=window, embedding_skip=start, value_embedding=with_value)
            for window, start, with_value in zip(windows, starts, with_values, strict=True)
        )
        attends = self._layers[0].self_attention
        tables = {str(layer): nn.Embedding(vocab_size, attends.value_width) for layer in value_embedding_layers}
        self.value_embeddings = nn.ModuleDict(tables)
        self.backout = Backout(BACKOUT_START) if backout else None
        self.rope = RotaryEmbedding(max_context_tokens, attends.head_width, base=rope_base, scaling=rope_scaling)
        self.final_norm = norm()
        self.head = None if tie_embeddings else nn.Linear(width, vocab_size, bias=False)

    @property
    def blocks(self) -> nn.ModuleList:
        """Return the layers."""
        return self.layers

    def features(
        self, tokens: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Run the layers and the last norm: [B, T] -> [B, T, D], and the sum of the layers' penalties."""
        num_tokens = tokens.shape[1]
        check_context(num_tokens, self.max_context_tokens)
        prepared = self.attention.prepare(documents, num_tokens=num_tokens, windows=self.windows, device=tokens.device)
        cos, sin = self.rope(num_tokens, documents)
        positions = Positions(cos, sin, documents, prepared)
        embedded = self.embedding(tokens, documents)
        x = middle = embedded.view_as(embedded)  # not the same object: the first block would be compiled by itself
        penalties: list[Tensor] = []
        for index, block in enumerate(self.layers):
            name = str(index)
            value_embedding = self.value_embeddings[name](tokens) if name in self.value_embeddings else None
            x, penalty = block(x, embedded, positions, value_embedding)
            if penalty is not None:
                penalties.append(penalty)
            if index == len(self.layers) // 2:
                middle = x
        if self.backout is not None:
            x = self.backout(x, middle)
        return self.final_norm(x), torch.stack(penalties).sum() if penalties else None

    def output_head(self) -> OutputHead:
        """Return the head's weight, or the token embedding's where they are tied, and the soft cap."""
        weight = self.embedding.token.weight if self.head is None else self.head.weight
        return OutputHead(weight, self.logit_soft_cap)

    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter and buffer in place; value embeddings start as plain Llama's unless a spread is set."""
        self.embedding.initialize_weights(generator, std=self.embedding_init_std)
        for block in self._layers:
            block.initialize_weights(generator, std=self.init_std, output_std=self.output_init_std)
        for table in self.value_embeddings.values():
            fill_normal(cast(nn.Embedding, table).weight, std=self.value_embedding_init_std, generator=generator)
        for part in (self.backout, self.rope, self.final_norm):
            if part is not None:
                part.initialize_weights()
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
