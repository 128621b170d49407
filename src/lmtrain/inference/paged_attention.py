"""Attention over a cache, for a model to go on from earlier tokens.

H heads, Hkv key and value heads, N tokens of several texts one after the other, K head width.
"""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from lmtrain.inference.cache_step import CacheStep
from lmtrain.models.attention.base import Attention, KernelTarget
from lmtrain.models.attention.masks import Prepared
from lmtrain.models.attention.sdpa import sdpa


@final
class PagedAttention(Attention):
    """Leave it to the step of a cache where the model is given one; elsewhere be torch's own attention."""

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
        return sdpa(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"paged: torch's attention over blocks of a cache on {place.device_type}"


paged = PagedAttention()
