"""One forward pass over pieces of texts with their earlier tokens cached.

The model is given a `Step` in the place of documents, and `paged` as its attention; it knows neither.
N tokens of several texts one after the other, H heads, Hkv key and value heads, K head width, S cached tokens,
P pieces, M blocks.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import final

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.inference.joint_texts import JointPass, JointTexts
from lmtrain.inference.kv_cache import KVCache, Pairs, Span
from lmtrain.models.documents import EarlierTokens


@final
@dataclass(frozen=True)
class Piece:
    """The next `num_tokens` of a text after `start` cached ones, with the blocks for all of them."""

    blocks: Sequence[int]
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Return how many tokens are cached afterwards."""
        return self.start + self.num_tokens

    def first_seen(self, window_tokens: int | None) -> int:
        """Return the first token visible to the piece's own."""
        return 0 if window_tokens is None else max(0, self.start + 1 - window_tokens)


class CacheStep(EarlierTokens):
    """Earlier tokens with their keys and values, for `paged` to ask."""

    @abstractmethod
    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H N K"]:
        """Keep keys and values, and mix those visible to each token: [1, H, N, K] -> [1, H, N, K]."""


@final
class Step(CacheStep):
    """One forward pass over pieces of texts: first those of one token, then the longer ones."""

    def __init__(self, cache: KVCache, pieces: Sequence[Piece], *, num_blocks: int) -> None:
        """Take the pieces in the order in which their tokens stand; `num_blocks` are touched in all."""
        self._cache, self._pieces, self._num_blocks = cache, pieces, num_blocks
        self._num_single = next((i for i, piece in enumerate(pieces) if piece.num_tokens > 1), len(pieces))
        assert all(piece.num_tokens > 1 for piece in pieces[self._num_single :]), "single tokens come first"
        # One text lying end to end is read where it is.
        self._num_joint = 0 if self._num_single == 1 and _are_consecutive(pieces[0].blocks) else self._num_single
        self._num_pairs, self._num_lasts = 0, 0
        self._spans: dict[tuple[int, int | None], Span] = {}
        self._joint_passes: dict[int | None, JointPass] = {}
        self._masks: dict[tuple[int, int | None], Bool[Tensor, "T S"]] = {}
        if not self._num_joint:
            cache.joint.clear()
        places = [place for piece in pieces for place in range(piece.start, piece.end)]
        self.positions = self._tensor(places).unsqueeze(0)
        self.num_positions = max(places) + 1

    @property
    def is_single(self) -> bool:
        """Tell whether each text reads one token."""
        return self._num_single == len(self._pieces)

    @override
    def previous(self, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        self._num_lasts += 1
        return self.previous_at(self._num_lasts - 1, x)

    def previous_at(self, place: int, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        """Be the place-th `previous` of a pass, from 0."""
        store = self._cache.lasts(place, x.shape[2:], x, num_blocks=self._num_blocks)
        firsts, starts, before = self._firsts
        cached = store.index_select(0, before)
        if starts is not None:
            cached[starts] = 0
        rows, blocks = self._lasts
        if self.is_single:
            shifted = cached
            store.index_copy_(0, blocks, x[0])
        else:
            shifted = torch.cat((cached[:1], x[0, :-1]))
            shifted.index_copy_(0, firsts, cached)
            store.index_copy_(0, blocks, x[0].index_select(0, rows))
        return shifted.unsqueeze(0)

    @override
    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H N K"]:
        self._num_pairs += 1
        return self.attend_at(self._num_pairs - 1, q, k, v, window_tokens=window_tokens)

    def attend_at(
        self,
        place: int,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
    ) -> Float[Tensor, "1 H N K"]:
        """Be the place-th `attend` of a pass, from 0."""
        pairs = self._cache.pairs(place, k, num_blocks=self._num_blocks)
        if len(self._slots) == 1:
            pairs.write_one(self._slots[0], k, v)
        else:
            pairs.write(self._slot_rows, k, v)
        if len(self._pieces) == 1 and not self._num_joint:
            return self._attend_piece(0, q, k, v, pairs, window_tokens)
        first = self._num_joint
        joint = (x[:, :, :first] for x in (q, k, v))
        mixed = [self._attend_joint(place, *joint, pairs=pairs, window_tokens=window_tokens)] if first else []
        for index, number in self._runs:
            own = slice(first, first + number * self._pieces[index].num_tokens)
            parts = (x[:, :, own] for x in (q, k, v))
            if number == 1:
                mixed.append(self._attend_piece(index, *parts, pairs=pairs, window_tokens=window_tokens))
            else:
                mixed.append(self._attend_beginnings(index, number, *parts, window_tokens=window_tokens))
            first = own.stop
        return torch.cat(mixed, dim=2) if len(mixed) > 1 else mixed[0]

    def _attend_joint(
        self, place: int, q: Tensor, k: Tensor, v: Tensor, *, pairs: Pairs, window_tokens: int | None
    ) -> Float[Tensor, "1 H P K"]:
        """Let one token of each text see all of its cached ones; heads of one group go side by side, as rows do."""
        joint = self._joint_pass(window_tokens, q.dtype)
        copy = self._cache.copy(place, pairs, joint)
        copy.write(joint.rows, k, v)
        keys, values = copy.read(self._num_joint, joint.num_seen).unbind(0)
        rows = q[0].unflatten(0, (keys.shape[0], -1)).transpose(1, 2)  # [Hkv, P, H / Hkv, K]
        mixed = F.scaled_dot_product_attention(rows, keys, values, attn_mask=joint.mask)
        return mixed.transpose(1, 2).flatten(0, 1).unsqueeze(0)

    def _attend_piece(
        self, index: int, q: Tensor, k: Tensor, v: Tensor, pairs: Pairs, window_tokens: int | None
    ) -> Float[Tensor, "1 H T K"]:
        """Let a piece see its text: its own keys and values, and those before them."""
        piece = self._pieces[index]
        is_grouped = q.shape[1] != k.shape[1]
        if piece.start > 0:
            k, v = pairs.read(self._span(index, window_tokens)).unbind(0)
        if piece.num_tokens == 1:  # sees every token
            rows = q.reshape(1, k.shape[1], -1, k.shape[3]) if is_grouped else q
            mixed = F.scaled_dot_product_attention(rows, k, v)
            return mixed.reshape(q.shape) if is_grouped else mixed
        return self._attend_longer(index, q, k, v, window_tokens)

    def _attend_beginnings(
        self, index: int, number: int, q: Tensor, k: Tensor, v: Tensor, *, window_tokens: int | None
    ) -> Float[Tensor, "1 H T K"]:
        """Let texts read from their beginning, equally long, see themselves in one attention."""
        by_text = (x[0].unflatten(1, (number, -1)).transpose(0, 1) for x in (q, k, v))  # [P, H, T, K]
        mixed = self._attend_longer(index, *by_text, window_tokens=window_tokens)
        return mixed.transpose(1, 2).flatten(0, 1).transpose(0, 1).unsqueeze(0)

    def _attend_longer(
        self, index: int, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None
    ) -> Float[Tensor, "P H T K"]:
        """Let pieces of several tokens, masked as the index-th, see keys and values, each token those before it."""
        piece = self._pieces[index]
        is_cut = window_tokens is not None and window_tokens < piece.end
        mask = self._mask_of_piece(index, window_tokens) if piece.start or is_cut else None
        is_grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped)

    def _span(self, index: int, window_tokens: int | None) -> Span:
        """Return the places of the tokens visible to a piece, its own included; the same in all layers of a window."""
        if (index, window_tokens) not in self._spans:
            piece, size = self._pieces[index], self._cache.block_tokens
            first = piece.first_seen(window_tokens)
            blocks, begins = piece.blocks[first // size : -(-piece.end // size)], first % size
            if _are_consecutive(blocks):
                span = Span(blocks[0] * size + begins, piece.end - first)
            else:
                span = Span(begins, piece.end - first, self._tensor(blocks))
            self._spans[index, window_tokens] = span
        return self._spans[index, window_tokens]

    def _joint_pass(self, window_tokens: int | None, dtype: torch.dtype) -> JointPass:
        """Return the numbers shared by all layers of a window, and leave the texts for the next pass."""
        if window_tokens not in self._joint_passes:
            size, texts, before = self._cache.block_tokens, self._pieces[: self._num_joint], self._cache.joint
            if window_tokens in before:
                joint = before[window_tokens].after(texts, window_tokens=window_tokens, block_tokens=size)
            else:
                joint = JointTexts.of(texts, window_tokens=window_tokens, block_tokens=size)
            before[window_tokens] = joint
            self._joint_passes[window_tokens] = JointPass.over(
                joint, window_tokens=window_tokens, block_tokens=size, dtype=dtype, device=self._cache.device
            )
        return self._joint_passes[window_tokens]

    def _mask_of_piece(self, index: int, window_tokens: int | None) -> Bool[Tensor, "T S"]:
        if (index, window_tokens) not in self._masks:
            piece = self._pieces[index]
            first = piece.first_seen(window_tokens)
            places = torch.arange(first, piece.end, device=self._cache.device)
            distance = places[piece.start - first :, None] - places
            self._masks[index, window_tokens] = _is_seen(distance, window_tokens)
        return self._masks[index, window_tokens]

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """Return the pieces behind the joint ones, texts that begin with as many tokens together: first and number."""
        alike = groupby(
            range(self._num_joint, len(self._pieces)),
            key=lambda index: self._pieces[index].num_tokens if self._pieces[index].start == 0 else -1 - index,
        )
        runs = (list(indices) for _, indices in alike)
        return [(run[0], len(run)) for run in runs]

    @cached_property
    def _slots(self) -> list[int]:
        """Return the row of each token in a store of tokens."""
        size = self._cache.block_tokens
        return [
            piece.blocks[p // size] * size + p % size for piece in self._pieces for p in range(piece.start, piece.end)
        ]

    @cached_property
    def _slot_rows(self) -> Int[Tensor, " N"]:
        return self._tensor(self._slots)

    @cached_property
    def _firsts(self) -> tuple[Int[Tensor, " P"], Int[Tensor, " C"] | None, Int[Tensor, " P"]]:
        """Return where pieces begin, those that begin a text (None: no piece does), and the block before each."""
        size = self._cache.block_tokens
        starts = [index for index, piece in enumerate(self._pieces) if piece.start == 0]
        before = [piece.blocks[max(piece.start - 1, 0) // size] for piece in self._pieces]
        return self._tensor(self._offsets), self._tensor(starts) if starts else None, self._tensor(before)

    @cached_property
    def _lasts(self) -> tuple[Int[Tensor, " L"], Int[Tensor, " L"]]:
        """Return the last token of each block written to, and the block."""
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


def _are_consecutive(blocks: Sequence[int]) -> bool:
    return list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))


def _is_seen(distance: Int[Tensor, "*S"], window_tokens: int | None) -> Bool[Tensor, "*S"]:
    return distance >= 0 if window_tokens is None else (distance >= 0) & (distance < window_tokens)
