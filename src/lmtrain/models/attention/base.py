"""The interface of an attention kernel, and which tokens it may see: causal, within a window, within a document.

B batch, T tokens, H heads, Hkv key and value heads, K head width.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lmtrain.models.documents import Documents, EarlierTokens, starts_document


@dataclass(frozen=True)
class Prepared:
    """A kernel's form of the documents, made once a forward, for its own use in every layer.

    `parts` holds the needs of each window of the layers, by window, or one thing for all of them.
    """

    parts: Any


Seen = Int[Tensor, "B T"] | Prepared | None  # the documents of an attention kernel
Windows = Collection[int | None]  # of all layers, in tokens; None is all


def seen_tokens(
    num_tokens: int,
    *,
    window_tokens: int | None,
    device: torch.device,
    documents: Int[Tensor, "B T"] | None = None,
) -> Bool[Tensor, "*B T T"]:
    """Return [T, T], or [B, 1, T, T] where there are documents: True where the row's token sees the column's."""
    position = torch.arange(num_tokens, device=device)
    distance = position[:, None] - position[None, :]
    seen = distance >= 0
    if window_tokens is not None:
        seen = seen & (distance < window_tokens)
    if documents is None:
        return seen
    return seen & (documents[:, None, :, None] == documents[:, None, None, :])


def is_cut(num_tokens: int, window_tokens: int | None) -> bool:
    """Return whether the window is shorter than the context; else the plain triangle will do."""
    return window_tokens is not None and window_tokens < num_tokens


def prepare_masks(
    documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
) -> Prepared | None:
    """Build the mask of each window once; None where every layer sees the plain triangle."""
    if documents is None and not any(is_cut(num_tokens, window) for window in windows):
        return None
    masks = {
        window: mask_of(documents, num_tokens=num_tokens, window_tokens=window, device=device) for window in windows
    }
    return Prepared(masks)


def mask_of(
    documents: Seen,
    *,
    num_tokens: int,
    window_tokens: int | None,
    device: torch.device,
) -> Bool[Tensor, "*B T T"] | None:
    """Return the prepared mask, or one built now; None where the plain triangle does."""
    if isinstance(documents, Prepared):
        return documents.parts[window_tokens]
    if documents is None and not is_cut(num_tokens, window_tokens):
        return None
    return seen_tokens(num_tokens, window_tokens=window_tokens, device=device, documents=documents)


def document_borders(documents: Int[Tensor, "B T"], *, max_documents: int) -> Int[Tensor, " N"]:
    """Return where each document of the batch begins if its rows lie end to end, and the end: int32 [B * n + 1].

    n is `max_documents`, for shapes must not depend on the data; an unused one is the end again, an empty document.
    A row may have fewer documents than n and another more, as long as the batch has no more than B * n.
    """
    num_batch, num_tokens = documents.shape
    total, room = num_batch * num_tokens, num_batch * max_documents
    first = starts_document(documents).flatten()  # [B * T]
    index = first.cumsum(0) - 1
    fits, problem = index[-1] < room, f"over {max_documents} documents a row: raise attention.max_documents_per_row"
    torch._assert_async(fits, problem)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # the device does not wait
    borders = torch.full((room + 2,), total, dtype=torch.int32, device=documents.device)
    slot = torch.where(first, index, room + 1).clamp(max=room + 1)  # the last slot takes all but borders
    position = torch.arange(total, dtype=torch.int32, device=documents.device)
    return borders.scatter(0, slot, position)[: room + 1]


def repeat_heads(x: Shaped[Tensor, "B Hkv T K"], num_heads: int) -> Shaped[Tensor, "B H T K"]:
    """Give every query head its own copy of its group's keys or values."""
    return x.repeat_interleave(num_heads // x.shape[1], dim=1)


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

    def __call__(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B Hkv T K"],
        v: Float[Tensor, "B Hkv T K"],
        /,
        *,
        window_tokens: int | None = None,
        documents: Seen = None,
    ) -> Float[Tensor, "B H T K"]:
        """Mix values causally: q [B, H, T, K], k and v [B, Hkv, T, K] -> [B, H, T, K]."""
        return self.attend(q, k, v, window_tokens, documents)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        """Do the same, by a kernel's own means."""

    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
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
    kernel: Attention, tokens: Int[Tensor, "B T"], documents: Documents | None, *, windows: Windows
) -> Seen:
    """Return a kernel's `documents` for every layer: prepared once, or earlier tokens as they are."""
    if isinstance(documents, EarlierTokens):
        return Prepared(documents)
    prepared = kernel.prepare(documents, num_tokens=tokens.shape[1], windows=windows, device=tokens.device)
    return documents if prepared is None else prepared
