"""Keys, values and last tokens of many texts in blocks: the memory of a cache, place by place in a model's forward.

Hkv key and value heads, K head width, R rows of one token each, B blocks of `size` tokens, P texts of M blocks or S
tokens, N tokens of several texts, X values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lmtrain.inference.joint_texts import JointTexts


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

    def __init__(self, pairs: Pairs, table: Int[Tensor, "P M"], room: Float[Tensor, " X"]) -> None:
        """Copy the blocks of a table into given memory."""
        taken = pairs.blocks.index_select(0, table.flatten()).view(len(table), -1, *pairs.rows.shape[1:])
        by_head = taken.permute(2, 3, 0, 1, 4)  # [2, Hkv, P, C, K]
        self._tokens = room[: taken.numel()].view(by_head.shape).copy_(by_head)

    def write(self, rows: Int[Tensor, " P"], k: Float[Tensor, "1 Hkv P K"], v: Float[Tensor, "1 Hkv P K"]) -> None:
        """Keep a token of each text, in its row of all texts' room."""
        for store, x in zip(self._tokens.flatten(2, 3), (k, v), strict=True):
            store.index_copy_(1, rows, x[0])

    def read(self, num_tokens: int) -> Float[Tensor, "2 Hkv P S K"]:
        """Return the texts' first tokens."""
        return self._tokens.narrow(3, 0, num_tokens)


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

    @property
    def num_bytes(self) -> int:
        """Return how much memory it holds."""
        return sum(store.nbytes for store in (*self._lasts, *self._rooms, *(pairs.rows for pairs in self._pairs)))

    def pairs(self, index: int, k: Float[Tensor, "1 Hkv N K"], *, num_blocks: int) -> Pairs:
        """Return keys and values of the index-th attention of a forward: room for at least `num_blocks` like `k`."""
        num_rows = num_blocks * self.block_tokens
        if index == len(self._pairs):
            rows = k.new_zeros(num_rows, 2, k.shape[1], k.shape[3])
            self._pairs.append(Pairs(rows, block_tokens=self.block_tokens))
        elif len(self._pairs[index].rows) < num_rows:
            self._pairs[index] = Pairs(_grown(self._pairs[index].rows, num_rows), block_tokens=self.block_tokens)
        return self._pairs[index]

    def copy(self, index: int, pairs: Pairs, table: Int[Tensor, "P M"] | None) -> SideBySide:
        """Return the index-th attention's copy of a table's blocks, in the memory of the last one; None: as it is.

        New memory costs a page fault every 4 KiB: at 16 texts 0.9 ms a layer, and 0.2 ms without.
        """
        if table is not None:
            num_values = table.numel() * pairs.blocks[0].numel()
            if index == len(self._rooms):
                self._rooms.append(pairs.rows.new_empty(0))
            if len(self._rooms[index]) < num_values:
                self._rooms[index] = pairs.rows.new_empty(num_values + num_values // 2)
            self._copies[index] = SideBySide(pairs, table, self._rooms[index])
        return self._copies[index]

    def lasts(self, index: int, row_shape: Sequence[int], like: Tensor, *, num_blocks: int) -> Tensor:
        """Return the blocks' last tokens at the index-th shift of a forward: at least `num_blocks` of a shape."""
        if index == len(self._lasts):
            self._lasts.append(like.new_zeros(num_blocks, *row_shape))
        elif len(self._lasts[index]) < num_blocks:
            self._lasts[index] = _grown(self._lasts[index], num_blocks)
        return self._lasts[index]


def _grown(store: Tensor, num_rows: int) -> Tensor:
    return torch.cat((store, store.new_zeros(max(len(store), num_rows - len(store)), *store.shape[1:])))
