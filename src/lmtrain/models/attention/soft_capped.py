"""Attention with bent scores, c tanh(score / c): Gemma 2, arXiv 2408.00118 section 2. Fused kernels of torch have none.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from lmtrain.models.attention.base import (
    Attention,
    KernelTarget,
    Prepared,
    Seen,
    Windows,
    mask_of,
    prepare_masks,
    seen_tokens,
)
from lmtrain.models.attention.eager import mix_seen
from lmtrain.models.attention.flex import Flex
from lmtrain.models.documents import EarlierTokens


@final
@dataclass(frozen=True)
class SoftCapped(Attention):
    """Bend scores at `cap`: in torch's flex kernel on a GPU, in plain products elsewhere, whatever `kernel` is."""

    kernel: Attention
    cap: float

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        if isinstance(documents, Prepared) and isinstance(documents.parts, EarlierTokens):
            return documents.parts.attend(q, k, v, window_tokens=window_tokens, soft_cap=self.cap)
        if q.is_cuda:
            return Flex(soft_cap=self.cap)(q, k, v, window_tokens=window_tokens, documents=documents)
        num_tokens = q.shape[2]
        seen = mask_of(documents, num_tokens=num_tokens, window_tokens=window_tokens, device=q.device)
        if seen is None:
            seen = seen_tokens(num_tokens, window_tokens=None, device=q.device)
        return mix_seen(q, k, v, seen, soft_cap=self.cap)

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared | None:
        prepare = Flex().prepare if device.type == "cuda" else prepare_masks
        return prepare(documents, num_tokens=num_tokens, windows=windows, device=device)

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"scores capped at {self.cap} in {'flex' if place.device_type == 'cuda' else 'plain products'}"
