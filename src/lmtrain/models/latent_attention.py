"""Latent attention (MLA): keys and values of all heads from one short vector of a token.

DeepSeek V2, arXiv 2405.04434 section 2.1. Training expands the vector into keys and values for any kernel. Generation
keeps the vector and a token's one rotated key, and moves the expansion into queries and output, section 2.1.2 there.
B batch, T tokens, D width, H heads, K head width, L latent width, R rotated and N other dimensions of a head, V values.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import Prepared
from lmtrain.models.documents import EarlierTokens
from lmtrain.models.residual_stream import RMSNorm
from lmtrain.models.rope import rotate
from lmtrain.models.self_attention import AttentionSettings, Positions
from lmtrain.models.weight_init import fill_linear

NORM_EPS = 1e-6  # of the latent vectors, whatever the model's other norms have


@final
@dataclass(frozen=True, kw_only=True)
class LatentWidths:
    """The widths of latent attention: L, N, R and V, and the queries' own latent; None projects queries at once."""

    latent: int
    unrotated: int
    rotated: int
    value: int
    query_latent: int | None = None

    def __post_init__(self) -> None:
        for name in ("latent", "unrotated", "rotated", "value", "query_latent"):
            require_count(f"model.latent_attention.{name}", getattr(self, name))
        if self.rotated % 2:
            raise ConfigurationError(
                f"model.latent_attention.rotated must be even, as rotary pairs are, got {self.rotated}. Did you mean "
                f"{self.rotated + 1}?"
            )

    @property
    def head(self) -> int:
        """Return K, the width of a query or a key."""
        return self.unrotated + self.rotated


@final
class LatentAttention(nn.Module):
    """Attend over the tokens so far by keys and values that one latent vector of a token gives all heads."""

    whole_in_groups = ("query_down", "latent_down")

    def __init__(self, width: int, settings: AttentionSettings, widths: LatentWidths) -> None:
        super().__init__()
        self.num_heads, self.widths = settings.num_heads, widths
        self.attention, self.attention_multiplier = settings.kernel, settings.multiplier
        self.rotary_neighbours = settings.rotary_neighbours
        queries = self.num_heads * widths.head
        self.query, self.query_down, self.query_norm, self.query_up = None, None, None, None
        if widths.query_latent is None:
            self.query = nn.Linear(width, queries, bias=False)
        else:
            self.query_down = nn.Linear(width, widths.query_latent, bias=False)
            self.query_norm = RMSNorm(widths.query_latent, eps=NORM_EPS)
            self.query_up = nn.Linear(widths.query_latent, queries, bias=False)
        self.latent_down = nn.Linear(width, widths.latent + widths.rotated, bias=False)
        self.latent_norm = RMSNorm(widths.latent, eps=NORM_EPS)
        self.latent_up = nn.Linear(widths.latent, self.num_heads * (widths.unrotated + widths.value), bias=False)
        self.output = nn.Linear(self.num_heads * widths.value, width, bias=False)

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts."""
        return AttentionShape(self.num_heads, self.widths.head, value_width=self.widths.value)

    def forward(self, x: Float[Tensor, "B T D"], positions: Positions, value_embedding: None = None) -> Tensor:
        """Mix tokens: [B, T, D] -> [B, T, D]."""
        del value_embedding
        q, q_rotated = self._split(self._queries(x), self.widths.rotated)  # [B, T, H, N], [B, T, H, R]
        latent, k_rotated = self.latent_down(x).split((self.widths.latent, self.widths.rotated), dim=-1)
        latent, k_rotated = self.latent_norm(latent), k_rotated.unsqueeze(2)  # [B, T, L], [B, T, 1, R]
        q_rotated, k_rotated = self._rotated(q_rotated, positions), self._rotated(k_rotated, positions)
        earlier = positions.seen.parts if isinstance(positions.seen, Prepared) else None
        if isinstance(earlier, EarlierTokens):
            mixed = self._from_cache(q, q_rotated, latent, k_rotated, earlier)
        else:
            k, v = self._split(self.latent_up(latent), self.widths.value)
            k = torch.cat((k, k_rotated.expand(*k.shape[:3], -1)), dim=-1)
            mixed = self._mixed(torch.cat((q, q_rotated), dim=-1), k, v, positions)
        return self.output(mixed.flatten(2))

    def initialize_inputs(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all matrices but the one into the residual stream."""
        for linear in (self.query, self.query_down, self.query_up, self.latent_down, self.latent_up):
            if linear is not None:
                fill_linear(linear, std=std, generator=generator)

    def _queries(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T E"]:
        if self.query is not None:
            return self.query(x)
        assert self.query_down is not None
        assert self.query_norm is not None
        assert self.query_up is not None
        return self.query_up(self.query_norm(self.query_down(x)))

    def _split(self, x: Float[Tensor, "B T E"], last: int) -> tuple[Tensor, Tensor]:
        """Cut each head into N dimensions and the last ones."""
        plain, rest = x.unflatten(-1, (self.num_heads, -1)).split((self.widths.unrotated, last), dim=-1)
        return plain, rest

    def _rotated(self, heads: Float[Tensor, "B T h R"], positions: Positions) -> Float[Tensor, "B T h R"]:
        return rotate(heads, positions.cos, positions.sin, neighbours=self.rotary_neighbours)

    def _mixed(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"],
        v: Float[Tensor, "B T H V"],
        positions: Positions,
    ) -> Float[Tensor, "B T H V"]:
        """Mix values by a kernel for heads of one width: the narrower of keys and values get zeros."""
        most = max(q.shape[-1], v.shape[-1])
        factor = self.attention_multiplier * (most / self.widths.head) ** 0.5
        q, k, v = (F.pad(part, (0, most - part.shape[-1])).transpose(1, 2) for part in (q, k, v))
        q = q if factor == 1.0 else q * factor
        mixed = self.attention(q, k, v, documents=positions.seen)
        return mixed[..., : self.widths.value].transpose(1, 2)

    def _from_cache(
        self,
        q: Float[Tensor, "1 T H N"],
        q_rotated: Float[Tensor, "1 T H R"],
        latent: Float[Tensor, "1 T L"],
        k_rotated: Float[Tensor, "1 T 1 R"],
        earlier: EarlierTokens,
    ) -> Float[Tensor, "1 T H V"]:
        """Mix latent vectors, all heads by one key, and expand the mixture."""
        widths = self.widths
        weight = self.latent_up.weight
        if type(self.latent_up) is not nn.Linear or type(weight) is not nn.Parameter:  # an adapter changes it, or a cut
            weight = self.latent_up(torch.eye(widths.latent, dtype=latent.dtype, device=latent.device)).T
        up = weight.to(latent.dtype).unflatten(0, (self.num_heads, -1))  # [H, N + V, L]
        of_keys, of_values = up.split((widths.unrotated, widths.value), dim=1)
        queries = torch.cat((torch.einsum("bthn,hnl->bthl", q, of_keys), q_rotated), dim=-1)
        width = widths.latent + widths.rotated
        queries = queries * (self.attention_multiplier * (width / widths.head) ** 0.5)  # for 1 / sqrt(width)
        key = torch.cat((latent.unsqueeze(2), k_rotated), dim=-1)  # [1, T, 1, L + R]
        mixed = earlier.attend_latent(queries.transpose(1, 2), key[:, :, 0], latent_width=widths.latent)
        return torch.einsum("bhtl,hvl->bthv", mixed, of_values)
