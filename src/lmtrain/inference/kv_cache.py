"""Keys, values and last tokens of many texts in blocks, computed once and read for every later token.

The model is given a `Step` in the place of documents, and `paged` as its attention; it knows neither.
N tokens of several texts one after the other, H heads, Hkv key and value heads, K head width, S cached tokens,
P pieces.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.models.documents import EarlierTokens


@final
@dataclass(frozen=True)
class Piece:
    """The next `num_tokens` of a text of which `start` are cached, with the blocks for all of them."""

    blocks: Sequence[int]
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Return how many tokens are cached afterwards."""
        return self.start + self.num_tokens


@final
class KVCache:
    """The layers' stores, block by block: made by the first forward pass, doubled as more blocks are touched."""

    def __init__(self, *, block_tokens: int, device: torch.device) -> None:
        self.block_tokens, self.device = block_tokens, device
        self._stores: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Return how much memory it holds."""
        return sum(store.nbytes for store in self._stores)

    def store(self, index: int, like: Tensor, *, num_rows: int) -> Tensor:
        """Return the store that the forward asks for at its index-th place: at least `num_rows` of `like`'s shape."""
        if index == len(self._stores):
            self._stores.append(like.new_zeros(num_rows, *like.shape))
        if len(self._stores[index]) < num_rows:
            old = self._stores[index]
            self._stores[index] = torch.cat((old, old.new_zeros(max(len(old), num_rows - len(old)), *like.shape)))
        return self._stores[index]


@final
class Step(EarlierTokens):
    """One forward pass over pieces of texts: first those of one token, then the longer ones."""

    def __init__(self, cache: KVCache, pieces: Sequence[Piece], *, num_blocks: int) -> None:
        """Take the pieces in the order in which their tokens stand; `num_blocks` are touched in all."""
        self._cache, self._pieces, self._num_blocks = cache, pieces, num_blocks
        self._num_single = next((i for i, piece in enumerate(pieces) if piece.num_tokens > 1), len(pieces))
        assert all(piece.num_tokens > 1 for piece in pieces[self._num_single :]), "single tokens come first"
        self._num_stores = 0
        self._masks: dict[int | None, Bool[Tensor, "P 1 1 S"]] = {}
        places = [place for piece in pieces for place in range(piece.start, piece.end)]
        self.positions = self._tensor(places).unsqueeze(0)
        self.num_positions = max(places) + 1

    @override
    def previous(self, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        store = self._next_store(x[0, 0], rows_per_block=1)
        shifted = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        firsts, blocks = self._firsts
        shifted[0, firsts] = 0
        if len(blocks):
            shifted[0, self._continued] = store[blocks]
        lasts, blocks = self._lasts
        store[blocks] = x[0, lasts]
        return shifted

    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H N K"]:
        """Keep keys and values, and mix those that each token sees: [1, H, N, K] -> [1, H, N, K]."""
        keys, values = (self._kept(x) for x in (k, v))
        mixed: list[Tensor] = []
        if self._num_single > 1:
            mixed.append(self._attend_singles(q[:, :, : self._num_single], keys, values, window_tokens))
            first, pieces = self._num_single, self._pieces[self._num_single :]
        else:
            first, pieces = 0, self._pieces
        for piece in pieces:
            rows = slice(first, first + piece.num_tokens)
            fresh = (k[:, :, rows], v[:, :, rows]) if piece.start == 0 else None
            mixed.append(self._attend_piece(q[:, :, rows], piece, keys, values, fresh, window_tokens))
            first += piece.num_tokens
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)

    def _kept(self, x: Float[Tensor, "1 Hkv N K"]) -> Float[Tensor, "R Hkv K"]:
        """Write tokens to their slots and return the whole store."""
        store = self._next_store(x[0, :, 0], rows_per_block=self._cache.block_tokens)
        return store.index_copy_(0, self._slots, x[0].transpose(0, 1))

    def _attend_singles(
        self, q: Float[Tensor, "1 H P K"], keys: Tensor, values: Tensor, window_tokens: int | None
    ) -> Float[Tensor, "1 H P K"]:
        """Let one token of each text see all of its cached ones; heads of one group go side by side, as rows do."""
        num_texts = self._num_single
        num_heads, num_kv_heads = q.shape[1], keys.shape[1]
        rows = q[0].transpose(0, 1).reshape(num_texts, num_kv_heads, num_heads // num_kv_heads, -1)
        # Whole blocks at once, which is faster than token by token.
        blocks = (store.view(-1, self._cache.block_tokens, *store.shape[1:]) for store in (keys, values))
        taken = (x.index_select(0, self._table.flatten()).view(num_texts, -1, *x.shape[2:]) for x in blocks)
        k, v = (x.transpose(1, 2) for x in taken)  # [P, Hkv, S, K] each
        mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=self._mask_of_singles(window_tokens))
        return mixed.reshape(num_texts, num_heads, -1).transpose(0, 1).unsqueeze(0)

    def _attend_piece(
        self,
        q: Float[Tensor, "1 H T K"],
        piece: Piece,
        keys: Tensor,
        values: Tensor,
        fresh: tuple[Tensor, Tensor] | None,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H T K"]:
        """Let a piece see its text; `fresh` are its own keys and values where it begins the text."""
        first = 0 if window_tokens is None else max(0, piece.start + 1 - window_tokens)
        k, v = fresh or (self._text(keys, piece, first), self._text(values, piece, first))
        num_heads, num_kv_heads = q.shape[1], k.shape[1]
        if piece.num_tokens == 1:  # sees all that there is
            rows = q.reshape(1, num_kv_heads, num_heads // num_kv_heads, -1)
            return F.scaled_dot_product_attention(rows, k, v).reshape(q.shape)
        is_cut = window_tokens is not None and window_tokens < piece.end
        mask = None if fresh and not is_cut else self._mask_of_piece(piece, first, window_tokens)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=num_heads != num_kv_heads
        )

    def _text(self, store: Float[Tensor, "R Hkv K"], piece: Piece, first: int) -> Float[Tensor, "1 Hkv S K"]:
        """Return a text's cached tokens from `first` on, without a copy where its blocks lie end to end."""
        size = self._cache.block_tokens
        blocks = piece.blocks[first // size : -(-piece.end // size)]
        begins, length = first % size, piece.end - first
        if blocks[-1] - blocks[0] == len(blocks) - 1 and all(a < b for a, b in itertools.pairwise(blocks)):
            rows = store[blocks[0] * size + begins :][:length]
        else:
            rows = store.view(-1, size, *store.shape[1:])[self._tensor(blocks)].flatten(0, 1)[begins:][:length]
        return rows.transpose(0, 1).unsqueeze(0)

    def _mask_of_singles(self, window_tokens: int | None) -> Bool[Tensor, "P 1 1 S"]:
        if window_tokens not in self._masks:
            place = torch.arange(self._table.shape[1] * self._cache.block_tokens, device=self._cache.device)
            distance = self.positions[0, : self._num_single, None] - place
            seen = distance >= 0 if window_tokens is None else (distance >= 0) & (distance < window_tokens)
            self._masks[window_tokens] = seen[:, None, None]
        return self._masks[window_tokens]

    def _mask_of_piece(self, piece: Piece, first: int, window_tokens: int | None) -> Bool[Tensor, "T S"]:
        places = torch.arange(first, piece.end, device=self._cache.device)
        distance = places[piece.start - first :, None] - places
        return distance >= 0 if window_tokens is None else (distance >= 0) & (distance < window_tokens)

    def _next_store(self, like: Tensor, *, rows_per_block: int) -> Tensor:
        """Return the store of this place in the forward, which is the same place in every forward."""
        self._num_stores += 1
        return self._cache.store(self._num_stores - 1, like, num_rows=self._num_blocks * rows_per_block)

    @cached_property
    def _slots(self) -> Int[Tensor, " N"]:
        """Return the row of each token in a store of tokens."""
        size = self._cache.block_tokens
        return self._tensor(
            [piece.blocks[p // size] * size + p % size for piece in self._pieces for p in range(piece.start, piece.end)]
        )

    @cached_property
    def _table(self) -> Int[Tensor, "P M"]:
        """Return the blocks of the texts with one token here, as many for each as the longest has."""
        size, pieces = self._cache.block_tokens, self._pieces[: self._num_single]
        counts = [-(-piece.end // size) for piece in pieces]
        longest = max(counts)
        return self._tensor(
            [[*piece.blocks[:n], *[0] * (longest - n)] for piece, n in zip(pieces, counts, strict=True)]
        )

    @cached_property
    def _firsts(self) -> tuple[Int[Tensor, " P"], Int[Tensor, " C"]]:
        """Return where pieces begin, and for those that go on the block of the token before."""
        size = self._cache.block_tokens
        before = [piece.blocks[(piece.start - 1) // size] for piece in self._pieces if piece.start]
        return self._tensor(self._offsets), self._tensor(before)

    @cached_property
    def _continued(self) -> Int[Tensor, " C"]:
        """Return where the pieces begin that go on."""
        return self._tensor([at for at, piece in zip(self._offsets, self._pieces, strict=True) if piece.start])

    @cached_property
    def _lasts(self) -> tuple[Int[Tensor, " L"], Int[Tensor, " L"]]:
        """Return the last token of each block that is written to, and the block."""
        size, rows, blocks = self._cache.block_tokens, list[int](), list[int]()
        for offset, piece in zip(self._offsets, self._pieces, strict=True):
            for block in range(piece.start // size, -(-piece.end // size)):
                rows.append(offset + min((block + 1) * size, piece.end) - 1 - piece.start)
                blocks.append(piece.blocks[block])
        return self._tensor(rows), self._tensor(blocks)

    @cached_property
    def _offsets(self) -> list[int]:
        ends = [0]
        for piece in self._pieces:
            ends.append(ends[-1] + piece.num_tokens)
        return ends[:-1]

    def _tensor(self, numbers: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._cache.device)
