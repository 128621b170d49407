"""Attention in plain operations: the reference for every kernel.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from lmtrain.accounting.options.parts import AttentionFacts
from lmtrain.models.attention.base import Attention, KernelTarget, Seen, mask_of, repeat_heads, seen_tokens


@final
class Eager(Attention):
    """Build all scores [B, H, T, T] and take their softmax in fp32 or better."""

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        num_heads, num_tokens = q.shape[1], q.shape[2]
        k, v = repeat_heads(k, num_heads), repeat_heads(v, num_heads)  # [B, H, T, K]
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # [B, H, T, T]
        seen = mask_of(documents, num_tokens=num_tokens, window_tokens=window_tokens, device=q.device)
        if seen is None:
            seen = seen_tokens(num_tokens, window_tokens=None, device=q.device)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return weights.to(v.dtype) @ v

    @override
    def describe(self, place: KernelTarget) -> str:
        return "eager: plain operations, scores of all pairs in memory"


def eager_facts() -> AttentionFacts:
    """Keep the scores of all pairs in memory."""
    return AttentionFacts(is_fused=False)


eager = Eager()
