"""Rotary self-attention with grouped heads: project, rotate, attend, project.

B batch, T tokens, D width, H heads, Hkv key and value heads, K head width, R rotated pairs of a head.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import Attention, Seen
from lmtrain.models.attention.soft_capped import SoftCapped
from lmtrain.models.dimensions import check_above_zero, check_gate, check_heads, check_positive
from lmtrain.models.documents import Documents
from lmtrain.models.embeddings import Smear
from lmtrain.models.residual_stream import Mix, RMSNorm, rms_norm
from lmtrain.models.rope import rotate
from lmtrain.models.weight_init import fill_constant, fill_linear

NormOver = Literal["head", "width"]


@final
class Positions:
    """Where tokens stand: rotations fp32, [T, 1, R] or by document [B, T, 1, R], and documents int [B, T].

    `seen` is the attention kernel's `documents`, for all layers. A plain class: FSDP rounds a block's inputs, in
    tuples and dataclasses too, and rotations stay in fp32.
    """

    def __init__(
        self,
        cos: Float[Tensor, "*B T 1 R"],
        sin: Float[Tensor, "*B T 1 R"],
        documents: Documents | None = None,
        seen: Seen = None,
    ) -> None:
        self.cos, self.sin, self.documents, self.seen = cos, sin, documents, seen


@final
@dataclass(frozen=True, kw_only=True)
class QueryKeyNorm:
    """Root mean squares of queries and keys brought to 1 before they meet (Qwen 3), where `is_on`.

    `scale` None learns a scale per head dimension, a number fixes it; `over` "width" (OLMoE, arXiv 2409.02060 section
    3.1) takes one root mean square over all heads of a token.
    """

    is_on: bool = False
    scale: float | None = None
    over: NormOver = "head"
    eps: float = 1e-5
    zero_centered: bool = False

    def __post_init__(self) -> None:
        check_above_zero(usual="1.0", qk_norm_scale=self.scale)
        if self.scale is not None and not self.is_on:
            raise ConfigurationError(
                f"model.qk_norm_scale={self.scale} has no effect without model.qk_norm=true. Did you mean null?"
            )
        if self.over == "width" and not self.is_learned:
            raise ConfigurationError(
                "model.qk_norm_over=width needs model.qk_norm=true and model.qk_norm_scale=null. Did you mean head?"
            )

    @property
    def is_learned(self) -> bool:
        """Return whether the scale is a parameter."""
        return self.is_on and self.scale is None

    def build(self, *, head_width: int, num_heads: int) -> RMSNorm | None:
        """Build the norm of the heads; None where no scale is learned."""
        width = head_width if self.over == "head" else head_width * num_heads
        return RMSNorm(width, eps=self.eps, zero_centered=self.zero_centered) if self.is_learned else None


@final
@dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    """Heads, kernel and norms of self-attention, alike in all layers of a model.

    `num_kv_heads` None gives every query head its own; `head_width` None is width / num_heads; `multiplier` is a factor
    of scores. `sinks` learns the score of one more token of each head, whose value is 0. `output_gate` multiplies a
    head's output by a sigmoid of as many more queries. `biases` are of "qkv" and "output". The first `rotary_share` of
    a head's dimensions rotate, in pairs of neighbours or of halves. `value_gate_width` is the number of a token's first
    dimensions read by gates of value embeddings; None has two learned scalars in their place.
    """

    num_heads: int
    kernel: Attention
    num_kv_heads: int | None = None
    head_width: int | None = None
    multiplier: float = 1.0
    biases: Collection[str] = ()
    sinks: bool = False
    output_gate: bool = False
    rotary_share: float = 1.0
    rotary_neighbours: bool = False
    qk_norm: QueryKeyNorm = field(default_factory=QueryKeyNorm)
    key_smear: bool = False
    value_gate_width: int | None = None

    def __post_init__(self) -> None:
        check_positive(num_heads=self.num_heads, num_kv_heads=self.kv_heads)
        check_above_zero(usual="1.0", attention_multiplier=self.multiplier)

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    def head_width_in(self, width: int) -> int:
        """Return K in a residual stream of a width."""
        divided = width if self.head_width is None else None
        check_heads(width=divided, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads or 1)
        head_width = width // self.num_heads if self.head_width is None else self.head_width
        if head_width < 2 or head_width % 2:
            raise ConfigurationError(
                f"model.head_width must be even, as rotary pairs are, got {head_width}. Did you mean "
                f"{max(2, head_width + 1)}?"
            )
        return head_width

    def rotated_width_in(self, width: int) -> int:
        """Return how many dimensions of a head rotate."""
        rotated = int(self.head_width_in(width) * self.rotary_share)
        if not 0 < self.rotary_share <= 1 or rotated % 2 or not rotated:
            raise ConfigurationError(
                f"model.rotary_share must be above 0, at most 1, and an even number of a head's dimensions, got "
                f"{self.rotary_share}. Did you mean {2 / self.head_width_in(width) if self.rotary_share <= 0 else 1.0}?"
            )
        return rotated


@final
class SelfAttention(nn.Module):
    """Attend over the tokens so far; one fused projection makes queries, keys and values, in that order.

    `value_embedding` mixes a vector per token into the values, by two learned scalars or by a gate per head.
    `window_tokens` is how many tokens a token sees, itself included; None is all. Without `rotates` it sees no places.
    """

    def __init__(
        self,
        width: int,
        settings: AttentionSettings,
        *,
        window_tokens: int | None = None,
        rotates: bool = True,
        value_embedding: bool = False,
    ) -> None:
        super().__init__()
        check_positive(width=width)
        self.num_heads, self.num_kv_heads = settings.num_heads, settings.kv_heads
        self.head_width = settings.head_width_in(width)
        self.attention, self.window_tokens = settings.kernel, window_tokens
        self.rotates, self.rotary_neighbours = rotates, settings.rotary_neighbours
        self.attention_multiplier = settings.multiplier
        self.qk_norm = settings.qk_norm
        self.output_gate = settings.output_gate
        queries = self.num_heads * self.head_width * (2 if self.output_gate else 1)
        self.widths = (queries, self.value_width, self.value_width)
        self.qkv = nn.Linear(width, sum(self.widths), bias="qkv" in settings.biases)
        self.fused_rows = {"qkv.weight": self.widths}  # of each matrix in a fused weight
        self.output = nn.Linear(self.num_heads * self.head_width, width, bias="output" in settings.biases)
        self.q_norm = self.qk_norm.build(head_width=self.head_width, num_heads=self.num_heads)
        self.k_norm = self.qk_norm.build(head_width=self.head_width, num_heads=self.num_kv_heads)
        self.sinks = nn.Parameter(torch.zeros(self.num_heads)) if settings.sinks else None
        self.first_head = 0  # of those here, where ranks share heads
        self.key_smear = Smear(self.value_width) if settings.key_smear else None
        self.value_gate, self.value_mix = None, None
        if value_embedding and settings.value_gate_width is not None:
            check_gate("value_gate_width", settings.value_gate_width, width)
            self.value_gate = nn.Linear(settings.value_gate_width, self.num_kv_heads, bias=False)
        elif value_embedding:
            self.value_mix = Mix(1.0, 1.0)

    @property
    def value_width(self) -> int:
        """Return how many values a token has over all of its heads: Hkv * K."""
        return self.num_kv_heads * self.head_width

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts."""
        return AttentionShape(self.num_heads, self.head_width, window_tokens=self.window_tokens)

    def forward(
        self, x: Float[Tensor, "B T D"], positions: Positions, value_embedding: Float[Tensor, "B T V"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Mix tokens: [B, T, D], with value embeddings [B, T, V], V = Hkv * K -> [B, T, D]."""
        q_width, k_width, v_width = self.widths
        qk, v = self.qkv(x).split((q_width + k_width, v_width), dim=-1)
        gate = None
        if self.output_gate:
            q, gate = self._heads(qk[..., :q_width]).unflatten(2, (-1, 2)).unbind(3)  # [B, T, H, K] each
            qk = torch.cat((q.flatten(2), qk[..., q_width:]), dim=-1)
        if value_embedding is not None:
            v = self._with_embedding(v, value_embedding, x)
        q, k = self._queries_and_keys(qk, positions)
        if self.attention_multiplier != 1.0:
            q = q * self.attention_multiplier
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), self._heads(v).transpose(1, 2)
        if self.sinks is None:
            mixed = self.attention(q, k, v, window_tokens=self.window_tokens, documents=positions.seen)  # [B, H, T, K]
        else:
            kernel = cast("SoftCapped", self.attention)
            sinks = self.sinks.narrow(0, self.first_head, self.num_heads)
            mixed = kernel.attend(q, k, v, self.window_tokens, positions.seen, sinks=sinks)
        mixed = mixed.transpose(1, 2)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate)
        return self.output(mixed.flatten(2))

    def initialize_inputs(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all but the matrix into the residual stream and the parts that start alike anywhere."""
        fill_linear(self.qkv, std=std, generator=generator)
        if self.sinks is not None:
            fill_constant(self.sinks, 0.0)

    def _queries_and_keys(
        self, qk: Float[Tensor, "B T E"], positions: Positions
    ) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "B T Hkv K"]]:
        """Smear keys, normalise and rotate; both at once where queries and keys are alike: E = (H + Hkv) * K."""
        if self.key_smear is None and self.q_norm is None:
            heads = self._rotated(self._scaled(self._heads(qk)), positions)
            q, k = heads.split((self.num_heads, self.num_kv_heads), dim=2)
            return q, k
        q, k = qk.split((self.num_heads * self.head_width, self.value_width), dim=-1)
        if self.key_smear is not None:
            k = self.key_smear(k, positions.documents)
        q, k = self._normalised(q, k)
        return self._rotated(q, positions), self._rotated(k, positions)

    def _rotated(self, heads: Float[Tensor, "B T H K"], positions: Positions) -> Float[Tensor, "B T H K"]:
        if not self.rotates:
            return heads
        return rotate(heads, positions.cos, positions.sin, neighbours=self.rotary_neighbours)

    def _with_embedding(
        self, v: Float[Tensor, "B T V"], value_embedding: Float[Tensor, "B T V"], x: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T V"]:
        if self.value_mix is not None:
            return self.value_mix(v, value_embedding)
        assert self.value_gate is not None
        gate = 2 * torch.sigmoid(self.value_gate(x[..., : self.value_gate.in_features]))  # [B, T, Hkv], starts at 1
        gated = gate.unsqueeze(-1) * value_embedding.unflatten(-1, (-1, self.head_width))  # [B, T, Hkv, K]
        return v + gated.flatten(2).to(v.dtype)

    def _heads(self, x: Float[Tensor, "B T E"]) -> Float[Tensor, "B T H K"]:
        return x.unflatten(-1, (-1, self.head_width))

    def _normalised(self, q: Tensor, k: Tensor) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "B T Hkv K"]]:
        if self.q_norm is None or self.k_norm is None:
            return self._scaled(self._heads(q)), self._scaled(self._heads(k))
        if self.qk_norm.over == "width":
            return self._heads(self.q_norm(q)), self._heads(self.k_norm(k))
        return self.q_norm(self._heads(q)), self.k_norm(self._heads(k))

    def _scaled(self, heads: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T H K"]:
        """Normalise by a fixed scale, where there is one."""
        norm = self.qk_norm
        return heads if norm.scale is None else rms_norm(heads, eps=norm.eps) * norm.scale
