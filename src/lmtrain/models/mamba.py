"""Mamba 2 (arXiv 2405.21060): attention by a state of fixed size, written and read by vectors of each token.

A head's state S [K, V] is S <- a S + d k v^T for a step d, which depends on the token, and a decay a = exp(-d A); it is
read by q. A group of heads shares k and q. Chunks of tokens are done at once, section 6 there. As in Nemotron-H, a
short convolution precedes, and a gated norm of each group follows.
B batch, T tokens, D width, G groups, R heads of a group, H = G R heads, K and V widths of a state and a head, N chunks
of C tokens.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lmtrain.accounting.model.model_shape import AttentionShape
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError
from lmtrain.models.delta_net import CHUNK_TOKENS, cut_chunks, document_borders, sums_between
from lmtrain.models.documents import EarlierTokens
from lmtrain.models.residual_stream import RMSNorm, rms_norm
from lmtrain.models.self_attention import Positions
from lmtrain.models.short_convolution import causal_convolution, fill_convolution
from lmtrain.models.weight_init import fill_constant, fill_linear

FIRST_STEPS = (0.001, 0.1)  # the range of the steps at the start of training


@final
@dataclass(frozen=True, kw_only=True)
class Mamba2:
    """The heads of a layer, their states and groups, and the tokens of its convolution.

    `convolution_bias` and `biases` (of the matrices) are parameters; a step is never below `least_step`.
    """

    num_heads: int
    head_width: int
    state_width: int
    num_groups: int = 1
    convolution_tokens: int = 4
    convolution_bias: bool = True
    biases: bool = False
    least_step: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_width", "state_width", "num_groups", "convolution_tokens"):
            require_count(f"model.recurrent_layers.{name}", getattr(self, name))
        require_number("model.recurrent_layers.least_step", self.least_step, at_least=0, usual="0")
        if self.num_heads % self.num_groups:
            raise ConfigurationError(
                f"model.recurrent_layers.num_heads must be a multiple of num_groups={self.num_groups}, got "
                f"{self.num_heads}. Did you mean {self.num_groups}?"
            )

    def build(self, width: int, *, norm_eps: float) -> "Mamba2Layer":
        """Build a layer."""
        return Mamba2Layer(width, self, norm_eps=norm_eps)


@final
class Mamba2Layer(nn.Module):
    """Mix tokens by a state of each head."""

    def __init__(self, width: int, heads: Mamba2, *, norm_eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.inner_width, self.key_width = heads.num_heads * heads.head_width, heads.num_groups * heads.state_width
        mixed = self.inner_width + 2 * self.key_width
        self.inputs = nn.Linear(width, self.inner_width + mixed + heads.num_heads, bias=heads.biases)
        self.convolution = nn.Parameter(torch.empty(mixed, 1, heads.convolution_tokens))
        self.convolution_bias = nn.Parameter(torch.zeros(mixed)) if heads.convolution_bias else None
        self.step_bias = nn.Parameter(torch.ones(heads.num_heads))
        self.decay_log = nn.Parameter(torch.zeros(heads.num_heads))
        self.skip = nn.Parameter(torch.ones(heads.num_heads))
        self.norm = RMSNorm(self.inner_width, eps=norm_eps)
        self.output = nn.Linear(self.inner_width, width, bias=heads.biases)

    def vectors(self) -> list[Any]:
        """Return the numbers of each channel and head: of the convolution, steps, decays, skips and the norm."""
        of_channels = [self.convolution, self.convolution_bias]
        return [*of_channels, self.step_bias, self.decay_log, self.skip, self.norm.weight]

    @property
    def attention_shape(self) -> AttentionShape:
        """Return the accounting's facts: two products of a state a token, and the convolution."""
        heads = self.heads
        flops = 4 * self.inner_width * heads.state_width + 2 * self.convolution.numel()
        return AttentionShape(heads.num_heads, heads.state_width, state_flops=flops)

    def forward(self, x: Float[Tensor, "B T D"], positions: Positions, value_embedding: None = None) -> Tensor:
        """Mix tokens: [B, T, D] -> [B, T, D]."""
        del value_embedding
        heads = self.heads
        convolution, bias, step_bias, decay_log, skip, norm = self.vectors()
        widths = (self.inner_width, convolution.shape[0], heads.num_heads)
        gates, mixed, steps = self.inputs(x).split(widths, dim=-1)
        mixed = causal_convolution(mixed, convolution, positions.documents)
        if bias is not None:
            mixed = mixed + bias.to(mixed.dtype)
        v, k, q = F.silu(mixed).split((self.inner_width, self.key_width, self.key_width), dim=-1)
        k, q = (part.unflatten(-1, (heads.num_groups, -1)).float() for part in (k, q))  # [B, T, G, K]
        v = v.unflatten(-1, (heads.num_heads, -1)).float()  # [B, T, H, V]
        steps = F.softplus(steps.float() + step_bias.float()).clamp(min=heads.least_step)  # [B, T, H]
        parts = [q, k, v * steps.unsqueeze(-1), -decay_log.float().exp() * steps]
        if isinstance(positions.documents, EarlierTokens):
            shape = (heads.num_groups, heads.state_width, heads.num_heads // heads.num_groups, heads.head_width)
            made = positions.documents.recur(parts, shape, state_space_rule)
        else:
            made = state_space_rule(parts, None, positions.documents)[0]
        made = (made + v * skip.float().unsqueeze(-1)).flatten(2) * F.silu(gates.float())
        normed = rms_norm(made.unflatten(-1, (heads.num_groups, -1)), eps=self.norm.eps).flatten(2)
        return self.output((normed * norm.float()).to(x.dtype))

    def initialize_inputs(self, generator: torch.Generator, *, std: float) -> None:
        """Fill all but the matrix into the residual stream and the norm."""
        fill_linear(self.inputs, std=std, generator=generator)
        fill_convolution(self.convolution, generator)
        if self.convolution_bias is not None:
            fill_constant(self.convolution_bias, 0.0)
        fill_constant(self.skip, 1.0)
        least, most = (torch.tensor(step).log().item() for step in FIRST_STEPS)
        drawn = torch.empty(self.step_bias.shape, device=generator.device)
        steps = drawn.uniform_(least, most, generator=generator).exp()
        with torch.no_grad():
            self.step_bias.copy_(steps + (-torch.expm1(-steps)).log())  # softplus makes steps of it
            self.decay_log.copy_(torch.arange(1.0, self.heads.num_heads + 1).log())


def state_space_rule(
    parts: list[Tensor], state: Float[Tensor, "B G K R V"] | None, documents: Int[Tensor, "B T"] | None = None
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B G K R V"]]:
    """Read the states after each token by its query, and return them with the last state, all in fp32.

    `parts` are queries and keys [B, T, G, K], values times steps [B, T, H, V], and the logarithm of the decay by token
    and head [B, T, H]. `state` is the one before the first token, None zeros; each document begins with zeros.
    """
    num_tokens, groups = parts[0].shape[1:3]
    chunk = 1 if num_tokens == 1 else CHUNK_TOKENS
    q, k, v, decay = (cut_chunks(part, chunk) for part in parts)  # [B, G or H, N, C, ...]
    v, decay = v.unflatten(1, (groups, -1)), decay.unflatten(1, (groups, -1))  # [B, G, R, N, C, ...]
    same, carries, stays = (part.unsqueeze(1) for part in document_borders(documents, num_tokens, chunk, q.device))
    between = sums_between(decay).exp() * same  # [B, G, R, N, C, C]
    so_far = decay.cumsum(-1).exp() * carries  # [B, G, R, N, C]
    made = ((q @ k.mT).unsqueeze(2) * between) @ v  # [B, G, R, N, C, V]
    ending = (v * (between[..., -1, :] * stays).unsqueeze(-1)).permute(0, 1, 3, 4, 2, 5)  # [B, G, N, C, R, V]
    added = (k.mT @ ending.flatten(-2)).unflatten(-1, ending.shape[-2:])  # [B, G, N, K, R, V]
    kept = so_far[..., -1].transpose(2, 3)[:, :, :, None, :, None]  # [B, G, N, 1, R, 1]
    last = torch.zeros_like(added[:, :, 0]) if state is None else state
    before: list[Tensor] = []
    for number in range(q.shape[2]):
        before.append(last)
        last = last * kept[:, :, number] + added[:, :, number]
    read = (q @ torch.stack(before, dim=2).flatten(-2)).unflatten(-1, ending.shape[-2:])  # [B, G, N, C, R, V]
    made = made + read.permute(0, 1, 4, 2, 3, 5) * so_far.unsqueeze(-1)
    return made.flatten(3, 4).flatten(1, 2)[:, :, :num_tokens].transpose(1, 2), last
