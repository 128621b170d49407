"""Visibility between tokens: a causal triangle, cut by a window and at the borders of documents.

B batch, T tokens.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from lmtrain.models.documents import starts_document


@dataclass(frozen=True)
class Prepared:
    """A kernel's form of the documents, made once a forward, for its own use in every layer.

    `parts` holds the needs of each window of the layers, by window, or one thing for all of them.
    """

    parts: Any


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
    """Tell whether the window is shorter than the context; else the plain triangle will do."""
    return window_tokens is not None and window_tokens < num_tokens


def prepare_masks(
    documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Collection[int | None], device: torch.device
) -> Prepared | None:
    """Build the mask of each window once; None where every layer sees the plain triangle."""
    if documents is None and not any(is_cut(num_tokens, window) for window in windows):
        return None
    masks = {
        window: seen_tokens(num_tokens, window_tokens=window, device=device, documents=documents)
        if documents is not None or is_cut(num_tokens, window)
        else None
        for window in windows
    }
    return Prepared(masks)


def mask_of(
    documents: Int[Tensor, "B T"] | Prepared | None,
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
