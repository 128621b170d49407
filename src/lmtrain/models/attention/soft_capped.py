"""Attention with bent scores, c tanh(score / c) (Gemma 2, arXiv 2408.00118 section 2), or with sinks (gpt-oss).

A sink is the learned score of one more token of a head, whose value is 0: a head may look at nothing. Fused kernels of
torch have neither.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
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
)
from lmtrain.models.attention.eager import mix_seen
from lmtrain.models.attention.flex import Flex
from lmtrain.models.dimensions import check_above_zero
from lmtrain.models.documents import EarlierTokens


@final
@dataclass(frozen=True)
class SoftCapped(Attention):
    """Bend scores at `cap`, if any, and mix next to sinks: in flex on a GPU, in plain products elsewhere."""

    kernel: Attention
    cap: float | None

    @override
    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        window_tokens: int | None,
        documents: Seen,
        *,
        sinks: Float[Tensor, " H"] | None = None,
    ) -> Tensor:
        if isinstance(documents, Prepared) and isinstance(documents.parts, EarlierTokens):
            return documents.parts.attend(q, k, v, window_tokens=window_tokens, soft_cap=self.cap, sinks=sinks)
        if q.is_cuda and sinks is None:
            return Flex(soft_cap=self.cap)(q, k, v, window_tokens=window_tokens, documents=documents)
        if q.is_cuda and sinks is not None:
            return Flex(soft_cap=self.cap).with_sinks(q, k, v, sinks, window_tokens=window_tokens, documents=documents)
        seen = mask_of(documents, num_tokens=q.shape[2], window_tokens=window_tokens, device=q.device)
        return mix_seen(q, k, v, seen, soft_cap=self.cap, sinks=sinks)

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared | None:
        prepare = Flex().prepare if device.type == "cuda" else prepare_masks
        return prepare(documents, num_tokens=num_tokens, windows=windows, device=device)

    @override
    def describe(self, place: KernelTarget) -> str:
        what = "sinks" if self.cap is None else f"scores capped at {self.cap}"
        return f"{what} in {'flex' if place.device_type == 'cuda' else 'plain products'}"


def bent(kernel: Attention, *, soft_cap: float | None, sinks: bool) -> Attention:
    """Return the kernel of these scores: itself for plain ones."""
    check_above_zero(usual="50.0, or null for no cap", attention_soft_cap=soft_cap)
    return SoftCapped(kernel, soft_cap) if sinks or soft_cap is not None else kernel
