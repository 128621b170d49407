"""Attention over a cache, for a model to go on from earlier tokens.

H heads, Hkv key and value heads, N tokens of several texts one after the other, K head width.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from lmtrain.inference.cache_step import CacheStep
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.masks import Prepared
from lmtrain.models.attention.sdpa import sdpa


@dataclass(frozen=True)
class CachedBeside(Attention):
    """A kernel of training that leaves tokens to the step of a cache where the model is given one."""

    kernel: Attention

    @override
    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B Hkv T K"],
        v: Float[Tensor, "B Hkv T K"],
        /,
        *,
        window_tokens: int | None = None,
        documents: Int[Tensor, "B T"] | Prepared | None = None,
    ) -> Float[Tensor, "B H T K"]:
        if isinstance(documents, Prepared) and isinstance(documents.parts, CacheStep):
            return documents.parts.attend(q, k, v, window_tokens=window_tokens)
        return self.kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def prepare(
        self,
        documents: Int[Tensor, "B T"] | None,
        *,
        num_tokens: int,
        windows: Collection[int | None],
        device: torch.device,
    ) -> Prepared | None:
        return self.kernel.prepare(documents, num_tokens=num_tokens, windows=windows, device=device)

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"{self.kernel.describe(place)}; over a cache while writing"


@final
class PagedAttention(CachedBeside):
    """Leave it to the step of a cache where the model is given one; elsewhere be torch's own attention."""

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"paged: torch's attention over blocks of a cache on {place.device_type}"


paged = PagedAttention(sdpa)
