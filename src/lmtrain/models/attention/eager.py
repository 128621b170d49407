"""Attention in plain operations: the reference for every kernel.

B batch, T tokens, S tokens that are seen, H heads, Hkv key and value heads, K head width.
"""

from typing import Final, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import AttentionFacts
from lmtrain.models.attention.base import Attention, KernelTarget, Seen, mask_of, repeat_heads, seen_tokens


def mix_seen(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B Hkv S K"],
    v: Float[Tensor, "B Hkv S K"],
    seen: Bool[Tensor, "*B T S"] | None,
    *,
    soft_cap: float | None = None,
    sinks: Float[Tensor, " H"] | None = None,
) -> Float[Tensor, "B H T K"]:
    """Mix the values that each query sees: [B, H, T, K]; a `soft_cap` c bends scores to c tanh(score / c).

    `seen` None is the plain triangle. `sinks` are the score of one more token of each head, whose value is 0.
    """
    if seen is None:
        seen = seen_tokens(q.shape[2], window_tokens=None, device=q.device)
    num_heads = q.shape[1]
    k, v = repeat_heads(k, num_heads), repeat_heads(v, num_heads)  # [B, H, S, K]
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # [B, H, T, S]
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is None:
        weights = scores.softmax(dim=-1)
    else:
        of_sinks = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, of_sinks), dim=-1).softmax(dim=-1)[..., :-1]
    return weights.to(v.dtype) @ v


@final
class Eager(Attention):
    """Build all scores [B, H, T, T] and take their softmax in fp32 or better."""

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        seen = mask_of(documents, num_tokens=q.shape[2], window_tokens=window_tokens, device=q.device)
        return mix_seen(q, k, v, seen)

    @override
    def describe(self, place: KernelTarget) -> str:
        return "eager: plain operations, scores of all pairs in memory"


EAGER_FACTS: Final = AttentionFacts(is_fused=False)


eager = Eager()
