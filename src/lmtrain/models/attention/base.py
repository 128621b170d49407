"""The interface of an attention kernel: one call for the causal mixing of values, and its needs from the machine.

Grouped-query attention (arXiv 2305.13245) where Hkv < H. A window is how many tokens a token sees, itself included;
None is all of them. B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.models.attention.masks import Prepared, prepare_masks
from lmtrain.models.documents import Documents, EarlierTokens


@dataclass(frozen=True, kw_only=True)
class KernelTarget:
    """Where a model will run: the type of device, the kind of queries, whether compiled, whether for gradients."""

    device_type: str
    dtype: torch.dtype
    head_width: int = 64
    is_compiled: bool = False
    training: bool = True


class Attention(ABC):
    """A causal attention kernel; a value without state, for compiled blocks to share one graph.

    `documents` int [B, T] names each token's document of its row and never falls along it: tokens of different
    documents do not see each other. None is one document a row.
    """

    @abstractmethod
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
        """Mix values causally: q [B, H, T, K], k and v [B, Hkv, T, K] -> [B, H, T, K]."""

    def prepare(
        self,
        documents: Int[Tensor, "B T"] | None,
        *,
        num_tokens: int,
        windows: Collection[int | None],
        device: torch.device,
    ) -> Prepared | None:
        """Make all layers' `documents` once a forward: here a mask for each of `windows`."""
        return prepare_masks(documents, num_tokens=num_tokens, windows=windows, device=device)

    def fitted(self, place: KernelTarget) -> "Attention":
        """Return the kernel in use there: itself, or a choice's result.

        Raises:
            ConfigurationError: It cannot run there.
            EnvironmentProblem: Its package is missing.
        """
        del place
        return self

    @abstractmethod
    def describe(self, place: KernelTarget) -> str:
        """Name the kernel in use there in a few words."""


def what_layers_see(
    kernel: Attention, tokens: Int[Tensor, "B T"], documents: Documents | None, *, windows: Collection[int | None]
) -> Int[Tensor, "B T"] | Prepared | None:
    """Return a kernel's `documents` for every layer: prepared once, or earlier tokens as they are."""
    if isinstance(documents, EarlierTokens):
        return Prepared(documents)
    prepared = kernel.prepare(documents, num_tokens=tokens.shape[1], windows=windows, device=tokens.device)
    return documents if prepared is None else prepared
