"""Keys, values and last tokens of many texts in blocks: the memory of a cache, place by place in a model's forward.

Hkv key and value heads, K head width, R rows of one token each, B blocks of `size` tokens, P texts of M blocks or S
tokens, N tokens of several texts, X values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.inference.joint_texts import JointPass, JointTexts

FIRST_BYTES = 16 * 2**20  # of a layer's store, before it grows: copied then, with new memory


@final
@dataclass(frozen=True)
class Span:
    """Where `num_tokens` of a text lie: end to end from `row` on, or from the row-th token of `blocks` on."""

    row: int
    num_tokens: int
    blocks: Int[Tensor, " M"] | None = None


@final
class Pairs:
    """One layer's keys and values: `rows` token by token, `by_head` and `blocks` the same memory."""

    def __init__(self, rows: Float[Tensor, "R 2 Hkv K"], *, block_tokens: int) -> None:
        self.rows = rows
        self.by_head: Float[Tensor, "2 1 Hkv R K"] = rows.permute(1, 2, 0, 3).unsqueeze(1)
        self.blocks: Float[Tensor, "B size 2 Hkv K"] = rows.unflatten(0, (-1, block_tokens))

    def write_one(self, row: int, k: Float[Tensor, "1 Hkv 1 K"], v: Float[Tensor, "1 Hkv 1 K"]) -> None:
        """Keep one token."""
        torch.stack((k, v), out=self.by_head.narrow(3, row, 1))

    def write(self, rows: Int[Tensor, " N"], k: Float[Tensor, "1 Hkv N K"], v: Float[Tensor, "1 Hkv N K"]) -> None:
        """Keep several tokens, each in its row."""
        for index, x in enumerate((k, v)):
            self.rows.select(1, index).index_copy_(0, rows, x[0].transpose(0, 1))

    def read(self, span: Span) -> Float[Tensor, "2 1 Hkv S K"]:
        """Return tokens of a text, without a copy where they lie end to end."""
        if span.blocks is None:
            return self.by_head.narrow(3, span.row, span.num_tokens)
        # Whole blocks: faster than token by token.
        rows = self.blocks.index_select(0, span.blocks).flatten(0, 1).narrow(0, span.row, span.num_tokens)
        return rows.permute(1, 2, 0, 3).unsqueeze(1)


@final
class SideBySide:
    """A copy of several texts' keys and values, head by head, C tokens of room for each text."""

    def __init__(self, tokens: Float[Tensor, "2 Hkv P C K"]) -> None:
        self._tokens = tokens

    def copy(self, pairs: Pairs, places: Int[Tensor, " N"], table: Int[Tensor, "N M"]) -> None:
        """Copy the blocks of a table, a line for each text, to the texts' places."""
        taken = pairs.blocks.index_select(0, table.flatten()).view(len(table), -1, *pairs.rows.shape[1:])
        by_head = taken.permute(2, 3, 0, 1, 4)  # [2, Hkv, N, M * size, K]
        self._tokens.narrow(3, 0, by_head.shape[3]).index_copy_(2, places, by_head)

    def write(self, rows: Int[Tensor, " P"], k: Float[Tensor, "1 Hkv P K"], v: Float[Tensor, "1 Hkv P K"]) -> None:
        """Keep a token of each text, in its row of all texts' room."""
        for store, x in zip(self._tokens.flatten(2, 3), (k, v), strict=True):
            store.index_copy_(1, rows, x[0])

    def read(self, num_texts: int, num_tokens: int) -> Float[Tensor, "2 Hkv P S K"]:
        """Return the first texts' first tokens."""
        return self._tokens.narrow(2, 0, num_texts).narrow(3, 0, num_tokens)


@final
class KVCache:
    """The layers' stores, block by block: made by the first forward pass, doubled as more blocks are touched.

    `joint` are the texts copied by the pass before, by window.
    """

    def __init__(self, *, block_tokens: int, device: torch.device) -> None:
        self.block_tokens, self.device = block_tokens, device
        self._pairs: list[Pairs] = []
        self._lasts: list[Tensor] = []
        self._rooms: list[Tensor] = []
        self._copies: dict[int, SideBySide] = {}
        self.joint: dict[int | None, JointTexts] = {}

    def pairs(self, index: int, k: Float[Tensor, "1 Hkv N K"], *, num_blocks: int) -> Pairs:
        """Return keys and values of the index-th attention of a forward: room for at least `num_blocks` like `k`."""
        num_rows = num_blocks * self.block_tokens
        if index == len(self._pairs):
            shape = (self.block_tokens, 2, k.shape[1], k.shape[3])
            first_blocks = FIRST_BYTES // (math.prod(shape) * k.itemsize)
            rows = _zeros(k, max(num_blocks, first_blocks), *shape).flatten(0, 1)
            self._pairs.append(Pairs(rows, block_tokens=self.block_tokens))
        elif len(self._pairs[index].rows) < num_rows:
            self._pairs[index] = Pairs(_grown(self._pairs[index].rows, num_rows), block_tokens=self.block_tokens)
        return self._pairs[index]

    def copy(self, index: int, pairs: Pairs, joint: JointPass) -> SideBySide:
        """Return the index-th attention's copy of joint texts, in the memory of the last one.

        New memory costs a page fault every 4 KiB: at 16 texts 0.9 ms a layer, and 0.2 ms without. Zeros: what is never
        written is never seen, but must be numbers.
        """
        if joint.is_new:
            shape = (*pairs.rows.shape[1:3], joint.num_room_texts, joint.num_room_tokens, pairs.rows.shape[3])
            if index == len(self._rooms):
                self._rooms.append(pairs.rows.new_empty(0))
            if len(self._rooms[index]) < (num_values := math.prod(shape)):
                self._rooms[index] = _zeros(pairs.rows, num_values + num_values // 2)
            self._copies[index] = SideBySide(self._rooms[index][:num_values].view(shape))
        if joint.places is not None and joint.table is not None:
            self._copies[index].copy(pairs, joint.places, joint.table)
        return self._copies[index]

    def lasts(self, index: int, row_shape: Sequence[int], like: Tensor, *, num_blocks: int) -> Tensor:
        """Return the blocks' last tokens at the index-th shift of a forward: at least `num_blocks` of a shape."""
        if index == len(self._lasts):
            self._lasts.append(like.new_zeros(num_blocks, *row_shape))
        elif len(self._lasts[index]) < num_blocks:
            self._lasts[index] = _grown(self._lasts[index], num_blocks)
        return self._lasts[index]


def _grown(store: Tensor, num_rows: int) -> Tensor:
    larger = _zeros(store, max(2 * len(store), num_rows), *store.shape[1:])
    larger[: len(store)] = store
    return larger


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros; on a CPU the system's own, which take no memory and no time until they are written."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.itemsize, dtype=np.uint8)).view(like.dtype).view(shape)
