"""torch's flex attention (arXiv 2412.05496): blocks of hidden pairs are skipped, in a compiled kernel.

B batch, T tokens, H heads, Hkv key and value heads, K head width, M blocks of BLOCK_TOKENS queries, N of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention
from typing_extensions import override

from lmtrain.accounting.options.parts import AttentionFacts
from lmtrain.errors import ConfigurationError
from lmtrain.models.attention.base import Attention, KernelTarget, Prepared, Seen, Windows

BLOCK_TOKENS = 128
MIN_HEAD_WIDTH = 16


@final
@dataclass(frozen=True, kw_only=True)
class Flex(Attention):
    """Skip the blocks hidden by a window or the borders of documents; trains on CUDA devices only.

    `soft_cap` c bends scores to c tanh(score / c).
    """

    soft_cap: float | None = None

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen, **wanted: Any) -> Any:
        if not isinstance(documents, Prepared):
            documents = self.prepare(documents, num_tokens=q.shape[-2], windows=(window_tokens,), device=q.device)
        mask = documents.parts[window_tokens]
        attend = flex_attention if torch.compiler.is_compiling() or q.device.type == "cpu" else _compiled()
        bend = None if self.soft_cap is None else _bending(self.soft_cap)
        return attend(q, k, v, score_mod=bend, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1], **wanted)

    def with_sinks(
        self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, window_tokens: int | None, documents: Seen
    ) -> Tensor:
        """Mix values next to one more token of each head, with the score `sinks` [H] and a value of 0."""
        mixed, aux = self.attend(q, k, v, window_tokens, documents, return_aux=AuxRequest(lse=True))
        share = torch.sigmoid(aux.lse - sinks.view(-1, 1))  # [B, H, T]
        return mixed * share.unsqueeze(-1).to(mixed.dtype)

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared:
        """Make the block mask of each window."""
        return Prepared(
            {
                window: block_mask(documents, num_tokens=num_tokens, window_tokens=window, device=device)
                for window in windows
            }
        )

    @override
    def fitted(self, place: KernelTarget) -> Attention:
        if place.training and place.device_type != "cuda":
            raise ConfigurationError(f"attention=flex has no backward pass on {place.device_type}; use attention=auto.")
        if place.device_type == "cuda" and place.head_width < MIN_HEAD_WIDTH:
            raise ConfigurationError(
                f"attention=flex needs heads at least {MIN_HEAD_WIDTH} wide, got {place.head_width}; use sdpa."
            )
        return self

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"flex: torch's block-sparse kernel on {place.device_type}"


def _bending(cap: float) -> Callable[..., Tensor]:
    """Return the change of a score."""

    def bend(score: Tensor, row: Tensor, head: Tensor, token: Tensor, earlier: Tensor) -> Tensor:
        del row, head, token, earlier
        return cap * torch.tanh(score / cap)

    return bend


def block_mask(
    documents: Int[Tensor, "B T"] | None,
    *,
    num_tokens: int,
    window_tokens: int | None,
    device: torch.device,
    first_row: int = 0,
) -> BlockMask:
    """Find hidden, cut and wholly seen blocks by each block's first and last document, never building [T, T].

    Documents do not fall along a row, so an earlier block shows something to a later one only if its last document is
    the later one's first, and everything only if its first is the later one's last. Queries are the tokens from
    `first_row` on, M blocks of them.
    """
    if documents is None:
        documents = torch.zeros(1, num_tokens, dtype=torch.int32, device=device)
    first, last = _ends(documents).unsqueeze(1).unbind(-1)  # [B, 1, N] each
    row_first, row_last = _ends(documents[:, first_row:]).unsqueeze(2).unbind(-1)  # [B, M, 1] each
    row, column = (BLOCK_TOKENS * torch.arange(num, device=device) for num in (row_first.shape[1], first.shape[2]))
    nearest = first_row + row[:, None] - column[None, :] - (BLOCK_TOKENS - 1)  # [M, N] tokens between the two
    farthest = nearest + 2 * (BLOCK_TOKENS - 1)
    before = nearest > 0
    partly = (before & (last == row_first)) | (~before & (farthest >= 0))  # [B, M, N]
    wholly = before & (first == row_last)
    if window_tokens is not None:
        partly, wholly = partly & (nearest < window_tokens), wholly & (farthest < window_tokens)
    cut_blocks, whole_blocks = _ordered(partly & ~wholly), _ordered(wholly)
    return BlockMask.from_kv_blocks(
        *cut_blocks,
        *whole_blocks,
        BLOCK_SIZE=BLOCK_TOKENS,
        mask_mod=_rule(documents, window_tokens, first_row),
        seq_lengths=(num_tokens - first_row, num_tokens),
    )


def _ends(documents: Int[Tensor, "B T"]) -> Float[Tensor, "B N 2"]:
    """Return the first and last document of each block."""
    num_batch, num_tokens = documents.shape
    padded = F.pad(documents[:, None].float(), (0, -num_tokens % BLOCK_TOKENS), mode="replicate")[:, 0]
    return padded.view(num_batch, -1, BLOCK_TOKENS)[:, :, :: BLOCK_TOKENS - 1]


def _ordered(blocks: Bool[Tensor, "B M N"]) -> tuple[Int[Tensor, "B 1 M"], Int[Tensor, "B 1 M N"]]:
    """Count each row's blocks and list their columns, the others behind them."""
    count = blocks.sum(-1, dtype=torch.int32)[:, None]
    columns = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)[:, None]
    return count, columns


def _rule(documents: Int[Tensor, "B T"], window_tokens: int | None, first_row: int) -> Callable[..., Tensor]:
    """Return whether one token sees another, for the cut blocks; one row of documents serves every row."""
    many = len(documents) > 1

    def sees(row: Tensor, head: Tensor, token: Tensor, earlier: Tensor) -> Tensor:
        del head
        line, token = row if many else 0, token + first_row
        seen = (token >= earlier) & (documents[line, token] == documents[line, earlier])
        return seen if window_tokens is None else seen & (token - earlier < window_tokens)

    return sees


@cache
def _compiled() -> Any:
    """Compile the kernel for uncompiled callers, as it would build all scores otherwise."""
    return torch.compile(flex_attention, dynamic=False)


# It keeps the same as torch's own kernel, and has no backward pass on a CPU to measure.
FLEX_FACTS: Final = AttentionFacts(measured_as="lmtrain.models.attention.sdpa.SDPA", masks_beyond=None)
