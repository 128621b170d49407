"""Gated delta networks (arXiv 2412.06464): attention by a state of fixed size, corrected towards each new value.

A head's state S [K, V] is S <- a S + k b (v - a S^T k)^T for a key k of length 1, a decay a and a rate b; it is read by
the query. Chunks of tokens are done at once by the WY form, section 3.3 there. As in Qwen3-Next, a short convolution
precedes, and a gated norm follows.
B batch, T tokens, D width, H value heads, G key heads, K and V their widths, N chunks of C tokens.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.models.documents import EarlierTokens, starts_document
from lmtrain.models.residual_stream import RMSNorm
from lmtrain.models.self_attention import Positions
from lmtrain.models.short_convolution import causal_convolution, fill_convolution
from lmtrain.models.weight_init import fill_constant, fill_linear

CHUNK_TOKENS = 64
LENGTH_EPS = 1e-6
LEAST_DECAY, MOST_DECAY = 0.01, 16.0  # where the rates of decay start


@final
@dataclass(frozen=True, kw_only=True)
class GatedDelta:
    """The heads of a gated delta network and the tokens of its convolution."""

    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    convolution_tokens: int = 4

    def __post_init__(self) -> None:
        for name in ("num_key_heads", "num_value_heads", "key_width", "value_width", "convolution_tokens"):
            require_count(f"model.recurrent_layers.{name}", getattr(self, name))
        if self.num_value_heads % self.num_key_heads:
            raise ConfigurationError(
                f"model.recurrent_layers.num_value_heads must be a multiple of num_key_heads={self.num_key_heads}, got "
                f"{self.num_value_heads}. Did you mean {self.num_key_heads}?"
            )

    def build(self, width: int, *, norm_eps: float) -> "GatedDeltaNet":
        """Build a layer."""
        return GatedDeltaNet(width, self, norm_eps=norm_eps)


@final
class GatedDeltaNet(nn.Module):
    """Mix tokens by a state of each value head; rows of `inputs` and `rates` are by key head, as in Qwen3-Next."""

    def __init__(self, width: int, heads: GatedDelta, *, norm_eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.key_width = heads.num_key_heads * heads.key_width
        self.inner_width = heads.num_value_heads * heads.value_width
        mixed = 2 * self.key_width + self.inner_width
        self.inputs = nn.Linear(width, mixed + self.inner_width, bias=False)  # queries, keys, values, gates
        self.rates = nn.Linear(width, 2 * heads.num_value_heads, bias=False)  # of correction, and of decay
        self.convolution = nn.Parameter(torch.empty(mixed, 1, heads.convolution_tokens))
        self.decay_bias = nn.Parameter(torch.ones(heads.num_value_heads))
        self.decay_log = nn.Parameter(torch.zeros(heads.num_value_heads))
        self.norm = RMSNorm(heads.value_width, eps=norm_eps)
        self.output = nn.Linear(self.inner_width, width, bias=False)

    def vectors(self) -> list[Tensor]:
        """Return the numbers of each channel and value head: of the convolution, and of decays."""
        return [self.convolution, self.decay_bias, self.decay_log]

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts: three products of a state a token."""
        heads = self.heads
        flops = 6 * heads.num_value_heads * heads.key_width * heads.value_width
        return AttentionShape(heads.num_value_heads, heads.key_width, state_flops=flops)

    def forward(self, x: Float[Tensor, "B T D"], positions: Positions, value_embedding: None = None) -> Tensor:
        """Mix tokens: [B, T, D] -> [B, T, D]."""
        del value_embedding
        heads, per_key = self.heads, self.heads.num_value_heads // self.heads.num_key_heads
        widths = (heads.key_width, heads.key_width, per_key * heads.value_width, per_key * heads.value_width)
        parts = self.inputs(x).unflatten(-1, (heads.num_key_heads, -1)).split(widths, dim=-1)  # [B, T, G, ...] each
        gates = parts[3].reshape(*x.shape[:2], -1, heads.value_width)  # [B, T, H, V]
        rates, decays = (
            part.flatten(2) for part in self.rates(x).unflatten(-1, (heads.num_key_heads, 2, -1)).unbind(3)
        )
        mixed = torch.cat([part.flatten(2) for part in parts[:3]], dim=-1)
        convolution, decay_bias, decay_log = self.vectors()
        mixed = F.silu(causal_convolution(mixed, convolution, positions.documents))
        q, k, v = mixed.split((self.key_width, self.key_width, self.inner_width), dim=-1)
        decays = -decay_log.float().exp() * F.softplus(decays.float() + decay_bias.float())  # [B, T, H]
        made = self._scanned(q, k, v, decays, rates.float().sigmoid(), positions)
        gated = self.norm(made.to(x.dtype)) * F.silu(gates.float())  # [B, T, H, V]
        return self.output(gated.to(x.dtype).flatten(2))

    def initialize_inputs(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all but the matrix into the residual stream and the norm."""
        for linear in (self.inputs, self.rates):
            fill_linear(linear, std=std, generator=generator)
        fill_convolution(self.convolution, generator)
        fill_constant(self.decay_bias, 1.0)
        drawn = torch.empty(self.decay_log.shape, device=generator.device)
        drawn.uniform_(LEAST_DECAY, MOST_DECAY, generator=generator)
        with torch.no_grad():
            self.decay_log.copy_(drawn.log())

    def _scanned(
        self, q: Tensor, k: Tensor, v: Tensor, decays: Tensor, rates: Tensor, positions: Positions
    ) -> Float[Tensor, "B T H V"]:
        heads = self.heads
        q, k = (part.unflatten(-1, (heads.num_key_heads, -1)).float() for part in (q, k))
        q, k = (part * (part.square().sum(-1, keepdim=True) + LENGTH_EPS).rsqrt() for part in (q, k))
        copies = heads.num_value_heads // heads.num_key_heads
        q, k = (part.repeat_interleave(copies, dim=2) for part in (q * heads.key_width**-0.5, k))  # [B, T, H, K]
        v = v.unflatten(-1, (heads.num_value_heads, -1)).float()
        documents = positions.documents
        if isinstance(documents, EarlierTokens):
            shape = (heads.num_value_heads, heads.key_width, heads.value_width)
            return documents.recur([q, k, v, decays, rates], shape, gated_delta_rule)
        return gated_delta_rule([q, k, v, decays, rates], None, documents)[0]


def gated_delta_rule(
    parts: list[Tensor], state: Float[Tensor, "B H K V"] | None, documents: Int[Tensor, "B T"] | None = None
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    """Read the states after each token by its query, and return them with the last state, all in fp32.

    `parts` are queries and keys [B, T, H, K], values [B, T, H, V], and by token and head the logarithm of the decay and
    the rate [B, T, H]. `state` is the one before the first token, None zeros; each document begins with zeros.
    """
    num_tokens = parts[0].shape[1]
    chunk = 1 if num_tokens == 1 else CHUNK_TOKENS
    q, k, v, decay, rate = (cut_chunks(part, chunk) for part in parts)  # [B, H, N, C, ...]
    rate = rate.unsqueeze(-1)
    same, carries, stays = document_borders(documents, num_tokens, chunk, q.device)
    between = sums_between(decay).exp() * same  # [B, H, N, C, C]
    so_far = (decay.cumsum(-1).exp() * carries).unsqueeze(-1)  # [B, H, N, C, 1]
    system = (rate * k @ k.mT) * between
    right = torch.cat((rate * v, rate * k * so_far), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, of_state = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    within = (q @ k.mT) * between
    to_end = (between[..., -1, :] * stays).unsqueeze(-1)  # [B, H, N, C, 1]
    q, k, kept = q * so_far, k * to_end, so_far[..., -1:, :]  # [B, H, N, 1, 1]
    last = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    made: list[Tensor] = []
    for number in range(q.shape[2]):
        new = values[:, :, number] - of_state[:, :, number] @ last
        made.append(q[:, :, number] @ last + within[:, :, number] @ new)
        last = last * kept[:, :, number] + k[:, :, number].mT @ new
    return torch.cat(made, dim=2)[:, :, :num_tokens].transpose(1, 2), last


def cut_chunks(x: Float[Tensor, "B T H *K"], size: int) -> Float[Tensor, "B H N C *K"]:
    """Cut tokens into chunks, the last one filled up with zeros."""
    x = x.transpose(1, 2)
    missing = -x.shape[2] % size
    padding = (0, 0) * (x.ndim - 3) + (0, missing)
    return F.pad(x, padding).unflatten(2, (-1, size))


def sums_between(decay: Float[Tensor, "B H N C"]) -> Float[Tensor, "B H N C C"]:
    """Sum the numbers after the column's token up to the row's, and never one before; -inf above the diagonal."""
    size = decay.shape[-1]
    causal = torch.ones(size, size, dtype=torch.bool, device=decay.device).tril()
    later = decay.unsqueeze(-1).expand(*decay.shape, size).masked_fill(~causal.tril(-1), 0.0)
    return later.cumsum(-2).masked_fill(~causal, -torch.inf)


def document_borders(
    documents: Int[Tensor, "B T"] | None, num_tokens: int, size: int, device: torch.device
) -> tuple[Bool[Tensor, "b 1 N C C"], Bool[Tensor, "b 1 N C"], Bool[Tensor, "b 1 N C"]]:
    """Return which tokens of a chunk are of one document, continue the chunk before, and last to its end."""
    if documents is None:
        documents = torch.zeros(1, num_tokens, dtype=torch.int64, device=device)
    number = starts_document(documents).long().cumsum(1)
    padded = F.pad(number[:, None].double(), (0, -num_tokens % size), mode="replicate")[:, 0]
    chunks = padded.unflatten(1, (-1, size)).unsqueeze(1)  # [B, 1, N, C]
    before = torch.cat((torch.ones_like(chunks[:, :, :1, 0]), chunks[:, :, :-1, -1]), dim=2)
    return chunks.unsqueeze(-1) == chunks.unsqueeze(-2), chunks == before.unsqueeze(-1), chunks == chunks[..., -1:]
