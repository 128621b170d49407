"""Rotary self-attention with grouped heads: project, rotate, attend, project.

B batch, T tokens, D width, H heads, Hkv key and value heads, K head width.
"""

from typing import final

from torch import Tensor, nn

from lmtrain.accounting.model_shape import AttentionShape
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention import Attention
from lmtrain.models.dimensions import check_multiple, check_positive
from lmtrain.models.embeddings import Mix, Smear
from lmtrain.models.norms import RMSNorm, rms_norm
from lmtrain.models.rope import rotate


@final
class SelfAttention(nn.Module):
    """Attend over the tokens so far; one fused projection makes queries, keys and values, in that order.

    `num_kv_heads` None gives every query head its own; `head_width` None is width / num_heads; `qk_norm_scale` None
    learns a scale per head dimension, a number fixes it; `value_embedding` mixes what forward is given into the values.
    Raises: ConfigurationError for dimensions that do not divide.
    """

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        attention: Attention,
        num_kv_heads: int | None = None,
        head_width: int | None = None,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        qk_norm_scale: float | None = None,
        key_smear: bool = False,
        value_embedding: bool = False,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive(width=width, num_heads=num_heads, num_kv_heads=num_kv_heads)
        check_multiple("num_heads", num_heads, "num_kv_heads", num_kv_heads)
        if head_width is None:
            check_multiple("width", width, "num_heads", num_heads)
            head_width = width // num_heads
        _check_rotary(head_width)
        if qk_norm_scale is not None and not qk_norm:
            raise ConfigurationError(
                f"model.qk_norm_scale={qk_norm_scale} has no effect without model.qk_norm=true; nearest valid: null."
            )
        self.num_heads, self.num_kv_heads, self.head_width = num_heads, num_kv_heads, head_width
        self.attention = attention
        self.norm_eps, self.qk_norm_scale = norm_eps, qk_norm_scale
        self.widths = (num_heads * head_width, self.value_width, self.value_width)
        self.qkv = nn.Linear(width, sum(self.widths), bias=False)
        self.output = nn.Linear(num_heads * head_width, width, bias=False)
        learned = qk_norm and qk_norm_scale is None
        self.q_norm = RMSNorm(head_width, eps=norm_eps) if learned else None
        self.k_norm = RMSNorm(head_width, eps=norm_eps) if learned else None
        self.key_smear = Smear(self.value_width) if key_smear else None
        self.value_mix = Mix(1.0, 1.0) if value_embedding else None

    @property
    def value_width(self) -> int:
        """Return how many values a token has over all of its heads: Hkv * K."""
        return self.num_kv_heads * self.head_width

    @property
    def attention_shape(self) -> AttentionShape:
        """Return what the accounting needs to know."""
        return AttentionShape(num_heads=self.num_heads, head_width=self.head_width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, value_embedding: Tensor | None = None) -> Tensor:
        """Mix tokens: [B, T, D], rotations [T, K / 2] twice, value embeddings [B, T, Hkv * K] -> [B, T, D]."""
        q, k, v = self.qkv(x).split(self.widths, dim=-1)
        if self.key_smear is not None:
            k = self.key_smear(k)
        if self.value_mix is not None and value_embedding is not None:
            v = self.value_mix(v, value_embedding)
        q, k = self._normalised(self._heads(q), self._heads(k))  # [B, H, T, K], [B, Hkv, T, K]
        mixed = self.attention(rotate(q, cos, sin), rotate(k, cos, sin), self._heads(v))  # [B, H, T, K]
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def _normalised(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is not None and self.k_norm is not None:
            return self.q_norm(q), self.k_norm(k)
        if self.qk_norm_scale is not None:
            scale = self.qk_norm_scale
            return rms_norm(q, eps=self.norm_eps) * scale, rms_norm(k, eps=self.norm_eps) * scale
        return q, k


def _check_rotary(head_width: int) -> None:
    if head_width < 2 or head_width % 2:
        nearest = max(2, head_width + 1)
        raise ConfigurationError(
            f"model.head_width={head_width} is not even, as rotary pairs are; nearest valid: {nearest}."
        )
