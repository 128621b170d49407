"""Texts with one token each in a pass, their cached tokens side by side for one attention over all of them.

The copy out of their blocks is made once and gains a token of each text a pass, as long as the same texts write on.
P texts, C tokens of room for each, S tokens seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

HEADROOM_BLOCKS = 4  # of each text: so many blocks are written before it is copied again


class NextToken(Protocol):
    """A text's one token here: its blocks, and how many tokens are cached afterwards."""

    @property
    def blocks(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102
    def first_seen(self, window_tokens: int | None) -> int: ...  # noqa: D102


@final
@dataclass(frozen=True)
class JointTexts:
    """One pass's record for the next: each text's blocks and cached tokens, and the block where its copy begins."""

    blocks: list[list[int]]
    ends: list[int]
    firsts: list[int]
    num_room_blocks: int

    @classmethod
    def of(cls, texts: Sequence[NextToken], *, window_tokens: int | None, block_tokens: int) -> "JointTexts":
        """Return the texts to copy, with room for more tokens of each."""
        firsts = [text.first_seen(window_tokens) // block_tokens for text in texts]
        longest = max(-(-text.end // block_tokens) - first for text, first in zip(texts, firsts, strict=True))
        blocks, ends = [list(text.blocks) for text in texts], [text.end for text in texts]
        return cls(blocks, ends, firsts, longest + HEADROOM_BLOCKS)

    def after(self, texts: Sequence[NextToken], *, block_tokens: int) -> "JointTexts | None":
        """Return the same texts with their next tokens; None where they are others, or have no room."""
        if len(texts) != len(self.ends):
            return None
        for text, blocks, end, first in zip(texts, self.blocks, self.ends, self.firsts, strict=True):
            has_room = text.end <= (first + self.num_room_blocks) * block_tokens
            if text.end != end + 1 or text.blocks[: len(blocks)] != blocks or not has_room:
                return None
        ends = [text.end for text in texts]
        return JointTexts([list(text.blocks) for text in texts], ends, self.firsts, self.num_room_blocks)

    def table(self, *, block_tokens: int) -> list[list[int]]:
        """Return the blocks to copy, as many for each text: the rest beyond its end is out of every token's sight."""
        rows: list[list[int]] = []
        for blocks, end, first in zip(self.blocks, self.ends, self.firsts, strict=True):
            seen = blocks[first : -(-end // block_tokens)]
            rows.append([*seen, *[0] * (self.num_room_blocks - len(seen))])
        return rows

    def last_rows(self, *, block_tokens: int) -> list[int]:
        """Return where each text's last token stands in the copy."""
        size = self.num_room_blocks * block_tokens
        return [
            index * size + end - 1 - first * block_tokens
            for index, (end, first) in enumerate(zip(self.ends, self.firsts, strict=True))
        ]

    def num_seen(self, *, block_tokens: int) -> int:
        """Return S: how many tokens the longest text has in the copy."""
        return max(end - first * block_tokens for end, first in zip(self.ends, self.firsts, strict=True))

    def mask(
        self, *, window_tokens: int | None, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "1 P 1 S"] | None:
        """Return 0 where a text's last token sees a copied one, else minus infinity; None where all see all.

        Numbers once a pass, as torch would convert true and false in every layer; and all four dimensions, as torch
        needs them for its fused kernel.
        """
        firsts = block_tokens * torch.tensor(self.firsts, device=device)[:, None]
        places = firsts + torch.arange(self.num_seen(block_tokens=block_tokens), device=device)
        distance = torch.tensor(self.ends, device=device)[:, None] - 1 - places  # [P, S]
        is_hidden = distance < 0 if window_tokens is None else (distance < 0) | (distance >= window_tokens)
        if not is_hidden.any():
            return None
        return torch.zeros(is_hidden.shape, dtype=dtype, device=device).masked_fill(is_hidden, -math.inf)[None, :, None]


@final
@dataclass(frozen=True)
class JointPass:
    """One pass over joint texts: the blocks to copy, or else the rows of the new tokens; and the mask."""

    table: Int[Tensor, "P M"] | None
    rows: Int[Tensor, " P"]
    num_seen: int
    mask: Float[Tensor, "1 P 1 S"] | None
