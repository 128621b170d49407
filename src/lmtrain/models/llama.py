"""Llama 3 (arXiv 2407.21783), and by options its relatives of other publishers, and findings of speed runs.

Every option is off by default: exactly Llama 3. Value embeddings, embedding skips, smears and zero starts are ideas of
the modded-nanogpt speed runs and of nanochat; the soft cap is Gemma 2's (arXiv 2408.00118). B batch, T tokens, D width,
V vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from typing_extensions import override

from lmtrain.accounting.model.model_shape import AttentionShape, ModelShape
from lmtrain.accounting.options.parts import ScalingFacts
from lmtrain.models.attention.base import Attention, what_layers_see
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.attention.soft_capped import bent
from lmtrain.models.base import shape_of
from lmtrain.models.delta_net import GatedDeltaNet
from lmtrain.models.dimensions import check_above_zero, check_context, check_not_negative, check_positive
from lmtrain.models.documents import Documents, EarlierTokens, num_positions
from lmtrain.models.embeddings import InputEmbedding, Smear
from lmtrain.models.feed_forward import Activation, SwiGLU
from lmtrain.models.future_tokens import FutureToken, further_targets
from lmtrain.models.head import Loss, LossTotal, OutputHead, with_penalty
from lmtrain.models.latent_attention import LatentWidths
from lmtrain.models.llama_settings import (
    NORM_PLACES,
    BiasPlace,
    FeedForward,
    NormPlace,
    build_smear,
    check_values,
    check_word,
    layer_feed_forwards,
    layer_windows,
    require,
    rotated_layers,
    skip_starts,
)
from lmtrain.models.mamba import Mamba2Layer
from lmtrain.models.mixers import Mixer, Recurrent, layer_mixers
from lmtrain.models.mixture_of_experts import Experts, MixtureOfExperts
from lmtrain.models.residual_stream import Backout, Mix, RMSNorm, SkipStart
from lmtrain.models.rope import RotaryEmbedding, RotaryScaling
from lmtrain.models.self_attention import AttentionSettings, NormOver, Positions, QueryKeyNorm, SelfAttention
from lmtrain.models.stages import LayerStream, StagedModel
from lmtrain.models.weight_init import fill_linear, fill_normal


@final
class LlamaBlock(nn.Module):
    """Add attention and the feed-forward to the residual stream.

    `norm` and `feed_forward` make a block's parts; norms stand before both branches, after them, or both; a block may
    have one branch alone. Branches are multiplied by `residual_multiplier` as they are added. `embedding_skip` first
    mixes the stream with its first value, by two learned scalars with these initial values; None does not.
    """

    def __init__(
        self,
        self_attention: Mixer | None,
        *,
        norm: Callable[[], RMSNorm],
        feed_forward: Callable[[], FeedForward] | None,
        norm_place: NormPlace = "before",
        residual_multiplier: float = 1.0,
        embedding_skip: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        check_above_zero(usual="1.0", residual_multiplier=residual_multiplier)
        check_word("norm_place", norm_place, NORM_PLACES)
        before, after = norm_place != "after", norm_place != "before"
        self.residual_multiplier = residual_multiplier
        self.embedding_skip = Mix(*embedding_skip) if embedding_skip else None
        mixes, feeds = self_attention is not None, feed_forward is not None
        self.attention_norm = norm() if before and mixes else None
        self.self_attention = self_attention
        self.attention_output_norm = norm() if after and mixes else None
        self.feed_forward_norm = norm() if before and feeds else None
        self.feed_forward = None if feed_forward is None else feed_forward()
        self.feed_forward_output_norm = norm() if after and feeds else None

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts; without attention nothing is counted."""
        mixer = self.self_attention
        return AttentionShape(0, 0, state_flops=0) if mixer is None else mixer.attention_shape

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        embedded: Float[Tensor, "B T D"],
        positions: Positions,
        value_embedding: Float[Tensor, "B T V"] | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Transform the stream: [B, T, D], its first value [B, T, D], and SelfAttention's further inputs -> [B, T, D].

        The second value is the feed-forward's penalty, a sum over tokens; None where it has none.
        """
        if self.embedding_skip is not None:
            x = self.embedding_skip(x, embedded)
        if self.self_attention is not None:
            normed = x if self.attention_norm is None else self.attention_norm(x)
            x = x + self._branch(self.self_attention(normed, positions, value_embedding), self.attention_output_norm)
        if self.feed_forward is None:
            return x, None
        normed = x if self.feed_forward_norm is None else self.feed_forward_norm(x)
        if isinstance(self.feed_forward, MixtureOfExperts):
            mixed, penalty = self.feed_forward(normed)
            return x + self._branch(mixed, self.feed_forward_output_norm), penalty
        return x + self._branch(self.feed_forward(normed), self.feed_forward_output_norm), None

    def _branch(self, made: Float[Tensor, "B T D"], norm: RMSNorm | None) -> Float[Tensor, "B T D"]:
        """Return a branch's output as it is added to the stream."""
        made = made if norm is None else norm(made)
        return made if self.residual_multiplier == 1.0 else made * self.residual_multiplier

    def initialize_weights(self, generator: torch.Generator, *, std: float, output_std: float) -> None:
        """Fill in place; `output_std` is of the two matrices into the residual stream."""
        outputs = [] if self.self_attention is None else [self.self_attention.output]
        if self.self_attention is not None:
            self.self_attention.initialize_inputs(generator, std=std)
        if self.feed_forward is not None and not isinstance(self.feed_forward, MixtureOfExperts):
            matrix_in = self.feed_forward.gate_up if isinstance(self.feed_forward, SwiGLU) else self.feed_forward.up
            fill_linear(matrix_in, std=std, generator=generator)
            outputs.append(self.feed_forward.down)
        for linear in outputs:
            fill_linear(linear, std=output_std, generator=generator)
        if isinstance(self.feed_forward, MixtureOfExperts):
            self.feed_forward.initialize_weights(generator, std=std, output_std=output_std)
        if isinstance(self.self_attention, SelfAttention) and self.self_attention.value_gate is not None:
            fill_linear(self.self_attention.value_gate, std=0.0, generator=generator)
        for module in self.modules():
            if isinstance(module, RMSNorm | Smear | Mix):
                module.initialize_weights()


BACKOUT_START = 0.2


@final
class Llama(StagedModel):
    """A decoder with rotary positions, grouped-query attention, RMSNorm and gated feed-forward layers.

    One keyword a setting, as the command line types them (`model.num_kv_heads=8`); parts take them in groups.
    `num_kv_heads`, `head_width`, `qk_norm_scale`, `qk_norm_over`, `value_gate_width`, `attention_multiplier`,
    `attention_sinks`, `rotary_share`, `rotary_neighbours`: as in AttentionSettings; `attention_soft_cap` c bends
    scores to c tanh(score / c). Of
    `rotary_pattern`, repeated, R layers rotate and N layers do not. `window_tokens` is the sliding window of all
    layers, or of those that `window_pattern`, repeated, spells S, while L see the whole context; `window_rope_base`
    is their base of rotations, never scaled. `zero_centered_norms`: as in RMSNorm. Token vectors, branches and
    logits are multiplied by `embedding_multiplier`, `residual_multiplier` and `logit_multiplier`.
    `attention_output_gate`: as in AttentionSettings. `latent_attention` takes the place of self-attention,
    `recurrent_layers` in the layers that `recurrent_pattern`, repeated, spells R, while A attend; with
    `single_branch_layers` these have no feed-forward, and F nothing else. `experts` makes every feed-forward a
    mixture of experts, `feed_forward_width` wide each. `value_embedding_layers` are the layers, from 0, with a
    vector per token added to their values. `logit_soft_cap` c bends logits to c tanh(logits / c).
    `embedding_init_std` and `head_init_std` None are `init_std`. `zero_init_outputs` starts every layer as the
    identity; otherwise depth narrows outputs as in GPT-2. `num_future_tokens` modules behind the layers predict as
    many tokens further on, in training alone: the mean of their losses, times `future_token_weight`, is added.
    """

    begins_with, ends_with = ("embedding",), ("backout", "final_norm", "head")

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
        rope_scaling: RotaryScaling | None = None,
        rotary_share: float = 1.0,
        rotary_neighbours: bool = False,
        rotary_pattern: str | None = None,
        window_tokens: int | None = None,
        window_pattern: str | None = None,
        window_rope_base: float | None = None,
        norm_eps: float = 1e-5,
        norm_weights: bool = True,
        norm_place: NormPlace = "before",
        zero_centered_norms: bool = False,
        biases: Sequence[BiasPlace] = (),
        tie_embeddings: bool = False,
        qk_norm: bool = False,
        qk_norm_scale: float | None = None,
        qk_norm_over: NormOver = "head",
        attention_multiplier: float = 1.0,
        attention_soft_cap: float | None = None,
        attention_sinks: bool = False,
        attention_output_gate: bool = False,
        latent_attention: LatentWidths | None = None,
        recurrent_layers: Recurrent | None = None,
        recurrent_pattern: str | None = None,
        single_branch_layers: bool = False,
        embedding_multiplier: float = 1.0,
        residual_multiplier: float = 1.0,
        logit_multiplier: float = 1.0,
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
        num_future_tokens: int = 0,
        future_token_weight: float = 0.3,
        init_std: float = 0.02,
        embedding_init_std: float | None = None,
        head_init_std: float | None = None,
        value_embedding_init_std: float = 0.0,
        zero_init_outputs: bool = False,
    ) -> None:
        super().__init__()
        check_positive(width=width, num_layers=num_layers, num_heads=num_heads, feed_forward_width=feed_forward_width)
        check_positive(vocab_size=vocab_size, max_context_tokens=max_context_tokens)
        check_values(value_embedding_layers, num_layers, gate=value_gate_width, init_std=value_embedding_init_std)
        check_not_negative(num_bigram_buckets=num_bigram_buckets, num_future_tokens=num_future_tokens)
        require(not tie_embeddings, "tie_embeddings=false", head_init_std=head_init_std)
        qk = QueryKeyNorm(is_on=qk_norm, scale=qk_norm_scale, over=qk_norm_over, eps=norm_eps,
                          zero_centered=zero_centered_norms)  # fmt: skip
        settings = AttentionSettings(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_width=head_width, qk_norm=qk, biases=tuple(biases),
            kernel=bent(attention, soft_cap=attention_soft_cap, sinks=attention_sinks), sinks=attention_sinks,
            multiplier=attention_multiplier, key_smear=key_smear, value_gate_width=value_gate_width,
            rotary_share=rotary_share, rotary_neighbours=rotary_neighbours, output_gate=attention_output_gate,
        )  # fmt: skip
        self.vocab_size, self.max_context_tokens, self.attention = vocab_size, max_context_tokens, settings.kernel
        self.num_future_tokens, self._future_token_weight = num_future_tokens, future_token_weight
        self._keep_scales(logit_soft_cap, logit=logit_multiplier, embedding=embedding_multiplier)
        num_branches = num_layers if single_branch_layers else 2 * num_layers
        output_std = 0.0 if zero_init_outputs else init_std / math.sqrt(num_branches)
        self._keep_spreads(init_std, output_std, value_embedding_init_std, embedding_init_std, head_init_std)
        norm = partial(RMSNorm, width, eps=norm_eps, learned=norm_weights, zero_centered=zero_centered_norms)
        self.embedding = InputEmbedding(
            vocab_size, width, num_bigram_buckets=num_bigram_buckets, norm=norm() if embedding_norm else None,
            smear=build_smear(width, is_on=embedding_smear, gate_width=smear_gate_width),
        )  # fmt: skip
        self._build_layers(
            partial(LlamaBlock, norm=norm, norm_place=norm_place, residual_multiplier=residual_multiplier),
            layer_mixers(num_layers, width, settings, latent_attention, recurrent_layers, pattern=recurrent_pattern,
                         single_branch=single_branch_layers),
            layer_feed_forwards(num_layers, activation, width, feed_forward_width, experts=experts, biases=biases),
            windows=layer_windows(num_layers, window_tokens=window_tokens, pattern=window_pattern),
            rotated=rotated_layers(num_layers, rotary_pattern), with_values=value_embedding_layers,
            starts=skip_starts(num_layers, is_on=embedding_skip, start=embedding_skip_start),
            single_branch=single_branch_layers, future=[partial(FutureToken, width, norm=norm)] * num_future_tokens,
        )  # fmt: skip
        self.backout = Backout(BACKOUT_START) if backout else None
        self.final_norm = norm()
        self.head = None if tie_embeddings else nn.Linear(width, vocab_size, bias=False)
        rotated = latent_attention.rotated if latent_attention else settings.rotated_width_in(width)
        self._build_rope(rotated, rope_base, rope_scaling, window_base=window_rope_base)

    def _keep_scales(self, logit_soft_cap: float | None, *, logit: float, embedding: float) -> None:
        check_above_zero(usual="15.0, or null for no cap", logit_soft_cap=logit_soft_cap)
        check_above_zero(usual="1.0", embedding_multiplier=embedding, logit_multiplier=logit)
        self._soft_cap, self._logit_multiplier, self._embedding_multiplier = logit_soft_cap, logit, embedding

    def _keep_spreads(
        self, of_matrices: float, of_outputs: float, of_values: float, of_embedding: float | None, of_head: float | None
    ) -> None:
        check_not_negative(init_std=of_matrices, head_init_std=of_head)
        check_not_negative(embedding_init_std=of_embedding, value_embedding_init_std=of_values)
        self._init_std, self._output_std, self._value_embedding_std = of_matrices, of_outputs, of_values
        self._embedding_std = of_matrices if of_embedding is None else of_embedding
        self._head_std = of_matrices if of_head is None else of_head

    def _build_layers(
        self,
        make: Callable[..., LlamaBlock],
        mixers: Sequence[Callable[..., Mixer | None]],
        feed_forwards: Sequence[Callable[[], FeedForward]],
        *,
        windows: Sequence[int | None],
        rotated: Sequence[bool],
        starts: Sequence[tuple[float, float] | None],
        with_values: Sequence[int],
        single_branch: bool,
        future: Sequence[Callable[[LlamaBlock], FutureToken]],
    ) -> None:
        """Build the blocks, modules of future tokens with further ones like the last, and value embeddings."""
        self.windows, self._layer_windows = tuple(dict.fromkeys(windows)), windows
        like = [*range(len(mixers)), *[len(mixers) - 1] * len(future)]
        built = [
            mixers[i](window_tokens=windows[i], rotates=rotated[i], value_embedding=layer in with_values)
            for layer, i in enumerate(like)
        ]
        blocks = [
            make(mixer, feed_forward=None if single_branch and mixer else feed_forwards[i], embedding_skip=starts[i])
            for i, mixer in zip(like, built, strict=True)
        ]
        further = [build(block) for build, block in zip(future, blocks[len(mixers) :], strict=True)]
        self.layers = nn.ModuleList([*blocks[: len(mixers)], *further])
        value_widths = {
            layer: cast("SelfAttention", self._layers[layer].self_attention).value_width for layer in with_values
        }
        tables = {str(layer): nn.Embedding(self.vocab_size, width) for layer, width in value_widths.items()}
        self.value_embeddings = nn.ModuleDict(tables)
        self.shares_beginnings = not any(isinstance(mixer, GatedDeltaNet | Mamba2Layer) for mixer in built)

    def _build_rope(
        self, rotated_width: int, base: float, scaling: RotaryScaling | None, *, window_base: float | None
    ) -> None:
        """Build the rotations of all layers, and others of those with a window where these have their own base."""
        require(any(self.windows), "window_tokens", window_rope_base=window_base)
        build = partial(RotaryEmbedding, self.max_context_tokens, rotated_width)
        self.rope = build(base=base, scaling=scaling)
        self.window_rope = None if window_base is None else build(base=window_base)
        if scaling is not None:
            self.shares_beginnings &= not scaling.follows_length
            self.reread_beyond = scaling.reread_beyond

    @property
    def blocks(self) -> nn.ModuleList:
        """Return the layers."""
        return self.layers

    @property
    def last_norm(self) -> nn.Module:
        """Return the norm before the head."""
        return self.final_norm

    @property
    @override
    def handed_on(self) -> tuple[str, ...]:
        reads = {
            "embedded": any(block.embedding_skip is not None for block in self._layers),
            "middle": self.backout is not None,
            "penalty": any(isinstance(block.feed_forward, MixtureOfExperts) for block in self._layers),
        }
        return ("x", *(name for name, is_read in reads.items() if is_read))

    def features(
        self, tokens: Int[Tensor, "B T"], documents: Documents | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        """Run the layers and the last norm: [B, T] -> [B, T, D], and the sum of the layers' penalties."""
        places = self._places(tokens, documents)
        return self._through_layers(tokens, self._embedded(tokens, documents), places)

    @override
    def begin(self, tokens: Int[Tensor, "B T"], documents: Documents | None) -> LayerStream:
        embedded = self._embedded(tokens, documents)
        return LayerStream(embedded.view_as(embedded), embedded, embedded)

    @override
    def through(
        self, stream: LayerStream, numbers: range, tokens: Int[Tensor, "B T"], documents: Documents | None
    ) -> LayerStream:
        return self._through(stream, numbers, tokens, self._places(tokens, documents))

    @override
    def end(self, stream: LayerStream) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        x = stream.x if self.backout is None else self.backout(stream.x, stream.middle)
        return self._for_head(self.final_norm(x)), stream.penalty

    @override
    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"] | None = None,
        loss: Loss | None = None,
        documents: Documents | None = None,
    ) -> Float[Tensor, "B T V"] | LossTotal:
        if targets is None or loss is None or not (self.num_future_tokens and self.training):
            return super().forward(tokens, targets, loss, documents)
        assert not isinstance(documents, EarlierTokens)
        places = self._places(tokens, documents)
        embedded = self._embedded(tokens, documents)
        hidden, penalty = self._through_layers(tokens, embedded, places)
        head, weight = self.output_head(), self._future_token_weight / self.num_future_tokens
        total, added = self.score(head, hidden, targets, loss), [] if penalty is None else [penalty]
        for num, module in enumerate(self._future, start=1):
            place = places[self._layer_windows[-1] is not None]
            hidden, scored, penalty = module(hidden, module.following(embedded, num), place)
            further = self.score(head, self._for_head(scored), further_targets(targets, documents, num), loss)
            added += [further.objective * weight] if penalty is None else [further.objective * weight, penalty]
        return with_penalty(total, torch.stack(added).sum())

    def _places(self, tokens: Int[Tensor, "B T"], documents: Documents | None) -> tuple[Positions, Positions]:
        """Return the places of layers that see all and of those with a window."""
        check_context(num_positions(tokens, documents), self.max_context_tokens)
        seen = what_layers_see(self.attention, tokens, documents, windows=self.windows)
        cos, sin = self.rope(tokens.shape[1], documents)
        positions = of_window = Positions(cos, sin, documents, seen)
        if self.window_rope is not None:
            cos, sin = self.window_rope(tokens.shape[1], documents)
            of_window = Positions(cos, sin, documents, seen)
        return positions, of_window

    def _embedded(self, tokens: Int[Tensor, "B T"], documents: Documents | None) -> Float[Tensor, "B T D"]:
        embedded = self.embedding(tokens, documents)
        if self._embedding_multiplier != 1.0:  # rounded to the format of the embedding, as Gemma's is
            embedded = embedded * embedded.new_full((), self._embedding_multiplier)
        return embedded

    def _through_layers(
        self, tokens: Int[Tensor, "B T"], embedded: Float[Tensor, "B T D"], places: tuple[Positions, Positions]
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""] | None]:
        x = embedded.view_as(embedded)  # not the same object: the first block would be compiled by itself
        return self.end(self._through(LayerStream(x, embedded, x), range(len(self._layers)), tokens, places))

    def _through(
        self, stream: LayerStream, numbers: range, tokens: Int[Tensor, "B T"], places: tuple[Positions, Positions]
    ) -> LayerStream:
        x, embedded, middle, before = stream
        penalties: list[Tensor] = [] if before is None else [before]
        layers = self._layers
        for index in numbers:
            name = str(index)
            value_embedding = self.value_embeddings[name](tokens) if name in self.value_embeddings else None
            place = places[self._layer_windows[index] is not None]
            x, penalty = layers[index](x, embedded, place, value_embedding)
            if penalty is not None:
                penalties.append(penalty)
            if index == len(layers) // 2:
                middle = x
        return LayerStream(x, embedded, middle, torch.stack(penalties).sum() if penalties else None)

    def _for_head(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return x if self._logit_multiplier == 1.0 else x * self._logit_multiplier

    def output_head(self) -> OutputHead:
        """Return the head's weight, or the token embedding's where they are tied, and the soft cap."""
        weight = self.embedding.token.weight if self.head is None else self.head.weight
        return OutputHead(weight, self._soft_cap)

    def initialize_weights(self, generator: torch.Generator) -> None:
        """Fill every parameter and buffer in place; value embeddings start as plain Llama's unless a spread is set."""
        self.embedding.initialize_weights(generator, std=self._embedding_std)
        for block in self._layers:
            block.initialize_weights(generator, std=self._init_std, output_std=self._output_std)
        for table in self.value_embeddings.values():
            fill_normal(cast(nn.Embedding, table).weight, std=self._value_embedding_std, generator=generator)
        for part in (self.backout, self.rope, self.window_rope, self.final_norm):
            if part is not None:
                part.initialize_weights()
        if self.head is not None:
            fill_linear(self.head, std=self._head_std, generator=generator)
        for module in self._future:  # last: a model has the same weights without them
            module.initialize_weights(generator, std=self._init_std)
            block = cast(LlamaBlock, module.future_block)
            block.initialize_weights(generator, std=self._init_std, output_std=self._output_std)

    def shape(self) -> ModelShape:
        """Count parameters by kind."""
        blocks = [*self._layers, *(cast(LlamaBlock, module.future_block) for module in self._future)]
        num_again = len(self._future) + (self.head is None)
        return shape_of(
            self,
            num_tied_head_parameters=num_again * self.embedding.token.weight.numel(),
            attention=tuple(block.attention_shape for block in blocks),
            num_streams=sum(name != "penalty" for name in self.handed_on),
        )

    @property
    def _layers(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]

    @property
    def _future(self) -> list[FutureToken]:
        return [layer for layer in self.layers if isinstance(layer, FutureToken)]


LLAMA_FACTS: Final = ScalingFacts(carries_over="width")
