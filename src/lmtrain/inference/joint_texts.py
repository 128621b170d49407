"""Texts with one token each in a pass, their cached tokens side by side for one attention over all of them.

A text's tokens are copied out of their blocks once, into a place kept for as long as it writes, and gain one a pass.
P texts, C tokens of room for each, S tokens seen, N texts copied, M blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

T = TypeVar("T")
HEADROOM_BLOCKS = 4  # of each text: so many blocks are written before it is copied again


class NextToken(Protocol):
    """A text's one token here: its blocks, and how many tokens are cached afterwards."""

    @property
    def blocks(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def end(self) -> int: ...  # noqa: D102
    def first_seen(self, window_tokens: int | None) -> int: ...  # noqa: D102


def keep_places(before: Sequence[T], now: Sequence[T]) -> list[T]:
    """Return the present texts, each in its place before; new ones in the places of others, then the last ones."""
    left, known = set(now), set(before)
    new = [text for text in now if text not in known]
    places = [text if text in left else new.pop(0) if new else None for text in before] + new
    while None in places:
        last = places.pop()
        if last is not None:
            places[places.index(None)] = last
    return [text for text in places if text is not None]


@final
@dataclass(frozen=True)
class JointTexts:
    """One pass's record for the next: each text's blocks and cached tokens, and the block where its copy begins.

    `changed` texts are to be copied; the room of all is laid out anew where `is_new`.
    """

    blocks: list[list[int]]
    ends: list[int]
    firsts: list[int]
    num_room_texts: int
    num_room_blocks: int
    changed: list[int] = field(default_factory=list[int])
    is_new: bool = False

    @classmethod
    def of(
        cls, texts: Sequence[NextToken], *, window_tokens: int | None, block_tokens: int, num_room_texts: int = 0
    ) -> "JointTexts":
        """Return the texts to copy, with room for more tokens of each, and for more texts where there was some."""
        firsts = [text.first_seen(window_tokens) // block_tokens for text in texts]
        longest = max(-(-text.end // block_tokens) - first for text, first in zip(texts, firsts, strict=True))
        blocks, ends = [list(text.blocks) for text in texts], [text.end for text in texts]
        room = num_room_texts if len(texts) <= num_room_texts else max(len(texts), 2 * num_room_texts)
        return cls(blocks, ends, firsts, room, longest + HEADROOM_BLOCKS, list(range(len(texts))), is_new=True)

    def after(self, texts: Sequence[NextToken], *, window_tokens: int | None, block_tokens: int) -> "JointTexts":
        """Return the texts of the next pass: those in their places, one token longer, are not copied."""
        firsts, changed = self.firsts[: len(texts)], list[int]()
        firsts += [0] * (len(texts) - len(firsts))
        for index, text in enumerate(texts):
            if index >= len(self.ends) or not self._goes_on(index, text, block_tokens=block_tokens):
                firsts[index] = text.first_seen(window_tokens) // block_tokens
                changed.append(index)
        has_room = all(texts[i].end <= (firsts[i] + self.num_room_blocks) * block_tokens for i in changed)
        if not has_room or len(texts) > self.num_room_texts:
            return JointTexts.of(
                texts, window_tokens=window_tokens, block_tokens=block_tokens, num_room_texts=self.num_room_texts
            )
        blocks, ends = [list(text.blocks) for text in texts], [text.end for text in texts]
        return JointTexts(blocks, ends, firsts, self.num_room_texts, self.num_room_blocks, changed)

    def _goes_on(self, index: int, text: NextToken, *, block_tokens: int) -> bool:
        blocks, most = self.blocks[index], (self.firsts[index] + self.num_room_blocks) * block_tokens
        return text.end == self.ends[index] + 1 <= most and text.blocks[: len(blocks)] == blocks

    def table(self, *, block_tokens: int) -> list[list[int]]:
        """Return the blocks to copy, as many for each changed text: the rest is out of every token's sight."""
        rows = [self.blocks[i][self.firsts[i] : -(-self.ends[i] // block_tokens)] for i in self.changed]
        longest = max(map(len, rows), default=0)
        return [[*row, *[0] * (longest - len(row))] for row in rows]

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
        lengths = {end - first * block_tokens for end, first in zip(self.ends, self.firsts, strict=True)}
        if len(lengths) == 1 and (window_tokens is None or lengths.pop() <= window_tokens):
            return None
        firsts = block_tokens * torch.tensor(self.firsts, device=device)[:, None]
        places = firsts + torch.arange(self.num_seen(block_tokens=block_tokens), device=device)
        distance = torch.tensor(self.ends, device=device)[:, None] - 1 - places  # [P, S]
        is_hidden = distance < 0 if window_tokens is None else (distance < 0) | (distance >= window_tokens)
        return torch.zeros(is_hidden.shape, dtype=dtype, device=device).masked_fill(is_hidden, -math.inf)[None, :, None]


@final
@dataclass(frozen=True)
class JointPass:
    """One pass over joint texts: C and the number of texts with room, `places` of the copied ones with their blocks.

    `rows` are those of the new tokens in all texts' room.
    """

    num_room_texts: int
    num_room_tokens: int
    is_new: bool
    places: Int[Tensor, " N"] | None
    table: Int[Tensor, "N M"] | None
    rows: Int[Tensor, " P"]
    num_seen: int
    mask: Float[Tensor, "1 P 1 S"] | None

    @classmethod
    def over(
        cls,
        texts: JointTexts,
        *,
        window_tokens: int | None,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "JointPass":
        """Return the numbers of a pass as tensors."""

        def tensor(numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
            return torch.tensor(numbers, dtype=torch.int64, device=device)

        size, has_copies = block_tokens, bool(texts.changed)
        return cls(
            texts.num_room_texts,
            texts.num_room_blocks * size,
            texts.is_new,
            tensor(texts.changed) if has_copies else None,
            tensor(texts.table(block_tokens=size)) if has_copies else None,
            tensor(texts.last_rows(block_tokens=size)),
            texts.num_seen(block_tokens=size),
            texts.mask(window_tokens=window_tokens, block_tokens=size, dtype=dtype, device=device),
        )
