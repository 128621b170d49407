"""The cache of an engine: each text has a slot with the keys, values and vectors of its tokens so far.

A model is given a `Step` in the place of documents and `CachedAttention` as its attention, and goes on from the cached
tokens. N tokens of P pieces of texts one after the other, H heads, Hkv key and value heads, G heads for each of those,
K head width, S cached tokens, R slots, C tokens of room in each.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.models.attention.base import Attention, KernelTarget, Prepared, Seen
from lmtrain.models.attention.eager import mix_seen
from lmtrain.models.attention.sdpa import sdpa
from lmtrain.models.documents import EarlierTokens, Rule

FIRST_TOKENS = 256  # of room in a slot, before it grows
Mix = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # queries, keys, values and what is seen to mixed values


@final
@dataclass(frozen=True)
class Piece:
    """The next `num_tokens` of the text in a slot, after `start` cached ones."""

    slot: int
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """Return how many tokens are cached afterwards."""
        return self.start + self.num_tokens


@final
class KVCache:
    """Slots of memory for at most `num_slots` texts of at most `num_tokens`, growing with use.

    `pairs` hold keys and values of each attention of a model, `vectors` the inputs of each shift by a token, `states`
    what a text left in each layer with a state of fixed size, in the order in which a forward pass asks for them.
    """

    def __init__(self, *, num_slots: int, num_tokens: int, device: torch.device) -> None:
        self.num_slots, self.num_tokens, self.device = num_slots, num_tokens, device
        self._room = (0, 0)
        self._pairs: list[Float[Tensor, "R C 2 Hkv K"]] = []
        self._vectors: list[Shaped[Tensor, "R C *D"]] = []
        self._states: list[Tensor] = []

    def reserve(self, num_slots: int, num_tokens: int) -> None:
        """Make room in the first slots, at least doubling it where it is too small."""
        slots, tokens = self._room
        if num_slots > slots:
            slots = min(self.num_slots, max(num_slots, 2 * slots))
        if num_tokens > tokens:
            tokens = min(self.num_tokens, max(num_tokens, 2 * tokens, FIRST_TOKENS))
        if (slots, tokens) != self._room:
            self._room = (slots, tokens)
            self._pairs = [_copied(store, self._new_pairs(store)) for store in self._pairs]
            self._vectors = [_copied(store, self._new_vectors(store)) for store in self._vectors]
            self._states = [_copied(store, _zeros(store, slots, *store.shape[1:])) for store in self._states]

    def pairs(self, place: int, row: Float[Tensor, "2 Hkv K"]) -> Float[Tensor, "R C 2 Hkv K"]:
        """Return the store of the place-th attention, for tokens like `row`."""
        if place == len(self._pairs):
            self._pairs.append(self._new_pairs(row))
        return self._pairs[place]

    def vectors(self, place: int, row: Shaped[Tensor, "*D"]) -> Shaped[Tensor, "R C *D"]:
        """Return the store of the place-th shift by a token, for tokens like `row`."""
        if place == len(self._vectors):
            self._vectors.append(self._new_vectors(row.expand(1, 1, *row.shape)))
        return self._vectors[place]

    def states(self, place: int, shape: tuple[int, ...]) -> Tensor:
        """Return the store of the place-th state of fixed size: fp32 [R, *shape]."""
        if place == len(self._states):
            self._states.append(_zeros(torch.empty(0, device=self.device), self._room[0], *shape))
        return self._states[place]

    def copy(self, source: int, slot: int, num_tokens: int) -> None:
        """Copy the first tokens of one slot to another."""
        self.reserve(slot + 1, num_tokens)
        for store in (*self._pairs, *self._vectors):
            store[slot, :num_tokens] = store[source, :num_tokens]

    def _new_pairs(self, like: Tensor) -> Float[Tensor, "R C 2 Hkv K"]:
        """Return a store whose tokens of one head lie together in memory, as attention reads them."""
        slots, tokens = self._room
        num_heads, width = like.shape[-2:]
        return _zeros(like, 2, slots, num_heads, tokens, width).permute(1, 3, 0, 2, 4)

    def _new_vectors(self, like: Tensor) -> Shaped[Tensor, "R C *D"]:
        return _zeros(like, *self._room, *like.shape[2:])


def _copied(store: Tensor, larger: Tensor) -> Tensor:
    larger[tuple(slice(size) for size in store.shape[:2])] = store
    return larger


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros; on a CPU the system's, which take no memory and no time until they are written."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(math.prod(shape) * like.itemsize, dtype=np.uint8)).view(like.dtype).view(shape)


@final
class Step(EarlierTokens):
    """One forward pass over the next tokens of several texts: pieces of one token first, then the longer ones."""

    def __init__(self, cache: KVCache, pieces: Sequence[Piece]) -> None:
        self._cache, self._pieces = cache, pieces
        self._num_single = sum(piece.num_tokens == 1 for piece in pieces)
        assert all(piece.num_tokens == 1 for piece in pieces[: self._num_single]), "single tokens come first"
        cache.reserve(max(piece.slot for piece in pieces) + 1, max(piece.end for piece in pieces))
        places = [(piece.slot, place) for piece in pieces for place in range(piece.start, piece.end)]
        self._slots, positions = torch.tensor(places, device=cache.device).unbind(1)
        self.positions = positions.unsqueeze(0)
        self.num_positions = max(piece.end for piece in pieces)
        self.lengths = [(piece.num_tokens, piece.end) for piece in pieces]
        self._num_shifts, self._num_attentions, self._num_states = 0, 0, 0
        self._masks: dict[int | None, Float[Tensor, "R 1 1 S"]] = {}

    @override
    def previous(self, x: Shaped[Tensor, "1 N *D"]) -> Shaped[Tensor, "1 N *D"]:
        return self.earlier(x, 1)[0]

    @override
    def earlier(self, x: Shaped[Tensor, "1 N *D"], num: int) -> list[Shaped[Tensor, "1 N *D"]]:
        store = self._cache.vectors(self._num_shifts, x[0, 0])
        self._num_shifts += 1
        positions = self.positions[0]
        store[self._slots, positions] = x[0]
        found: list[Tensor] = []
        for distance in range(1, num + 1):
            shifted = store[self._slots, (positions - distance).clamp(min=0)]
            shifted[positions < distance] = 0
            found.append(shifted.unsqueeze(0))
        return found

    @override
    def recur(self, parts: list[Tensor], state_shape: tuple[int, ...], rule: Rule) -> Tensor:
        store = self._cache.states(self._num_states, state_shape)
        self._num_states += 1
        singles = self._num_single
        groups = [self._pieces[:singles]] if singles else []
        made, first = list[Tensor](), 0
        for pieces in (*groups, *([piece] for piece in self._pieces[singles:])):
            stop = first + len(pieces) * pieces[0].num_tokens
            slots = torch.tensor([piece.slot for piece in pieces], device=store.device)
            state = store[slots]
            state[torch.tensor([piece.start == 0 for piece in pieces], device=store.device)] = 0
            of_texts = [part[0, first:stop].unflatten(0, (len(pieces), -1)) for part in parts]
            output, store[slots] = rule(of_texts, state)
            made.append(output.flatten(0, 1))
            first = stop
        return torch.cat(made).unsqueeze(0)

    @override
    def attend(
        self,
        q: Float[Tensor, "1 H N K"],
        k: Float[Tensor, "1 Hkv N K"],
        v: Float[Tensor, "1 Hkv N K"],
        *,
        window_tokens: int | None,
        soft_cap: float | None = None,
        sinks: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "1 H N K"]:
        pairs = torch.stack((k[0], v[0])).permute(2, 0, 1, 3)  # [N, 2, Hkv, K]
        store = self._cache.pairs(self._num_attentions, pairs[0])
        self._num_attentions += 1
        store[self._slots, self.positions[0]] = pairs
        keys, values = store.unbind(2)
        is_plain = soft_cap is None and sinks is None  # as a fused kernel computes them
        mix = None if is_plain else partial(mix_seen, soft_cap=soft_cap, sinks=sinks)
        return self._mix(q, keys, values, window_tokens, mix)

    @override
    def attend_latent(
        self, q: Float[Tensor, "1 H N E"], latent: Float[Tensor, "1 N E"], *, latent_width: int
    ) -> Float[Tensor, "1 H N L"]:
        store = self._cache.vectors(self._num_shifts, latent[0, 0])
        self._num_shifts += 1
        store[self._slots, self.positions[0]] = latent[0]
        keys = store.unsqueeze(2)  # [R, C, 1, E]
        return self._mix(q, keys, keys[..., :latent_width], None, None)

    def _mix(
        self,
        q: Float[Tensor, "1 H N K"],
        keys: Float[Tensor, "R C Hkv K"],
        values: Float[Tensor, "R C Hkv V"],
        window_tokens: int | None,
        mix: Mix | None,
    ) -> Float[Tensor, "1 H N V"]:
        """Mix kept values: single tokens in one product, longer pieces one by one."""
        singles = self._num_single
        mixed = [self._mix_singles(q[:, :, :singles], keys, values, window_tokens, mix)] if singles else []
        first = singles
        for piece in self._pieces[singles:]:
            stop = first + piece.num_tokens
            mixed.append(_mix_piece(piece, q[:, :, first:stop], keys, values, window_tokens, mix))
            first = stop
        return torch.cat(mixed, dim=2) if len(mixed) > 1 else mixed[0]

    def _mix_singles(
        self,
        q: Float[Tensor, "1 H P K"],
        keys: Float[Tensor, "R C Hkv K"],
        values: Float[Tensor, "R C Hkv V"],
        window_tokens: int | None,
        mix: Mix | None,
    ) -> Float[Tensor, "1 H P V"]:
        """Let one token of each text see its cached ones: all texts in one product, the slots between them too."""
        singles = self._pieces[: self._num_single]
        slots, ends = [piece.slot for piece in singles], [piece.end for piece in singles]
        first, num_rows, end = min(slots), max(slots) + 1 - min(slots), max(ends)
        start = 0 if window_tokens is None else max(0, min(ends) - window_tokens)
        kept = (slice(first, first + num_rows), slice(start, end))
        keys, values = keys[kept].transpose(1, 2), values[kept].transpose(1, 2)  # [R, Hkv, S, K]
        rows = self._slots[: len(slots)] - first
        queries = q[0].transpose(0, 1).unflatten(1, (keys.shape[1], -1))  # [P, Hkv, G, K]
        queries = queries.new_zeros(num_rows, *queries.shape[1:]).index_copy_(0, rows, queries)
        if num_rows > 1 and window_tokens not in self._masks:
            row_ends = torch.full((num_rows,), end, device=q.device)
            row_ends = row_ends.index_copy_(0, rows, self.positions[0, : len(slots)] + 1)
            distance = row_ends[:, None] - 1 - torch.arange(start, end, device=q.device)
            mask = torch.zeros(distance.shape, dtype=q.dtype, device=q.device)
            self._masks[window_tokens] = mask.masked_fill(~_is_seen(distance, window_tokens), -math.inf)[:, None, None]
        mask = self._masks.get(window_tokens)  # None: the one text sees all that is read
        if mix is None:
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        else:
            seen = torch.ones(1, 1, dtype=torch.bool, device=q.device) if mask is None else mask == 0
            mixed = mix(queries.flatten(1, 2).unsqueeze(2), keys, values, seen).unflatten(1, queries.shape[1:3])
            mixed = mixed.squeeze(3)
        return mixed[rows].flatten(1, 2).transpose(0, 1).unsqueeze(0)


def _mix_piece(
    piece: Piece,
    q: Float[Tensor, "1 H T K"],
    keys: Float[Tensor, "R C Hkv K"],
    values: Float[Tensor, "R C Hkv V"],
    window_tokens: int | None,
    mix: Mix | None,
) -> Float[Tensor, "1 H T V"]:
    """Let each token of a piece see those before it in its text."""
    first = 0 if window_tokens is None else max(0, piece.start + 1 - window_tokens)
    kept = (slice(piece.slot, piece.slot + 1), slice(first, piece.end))
    keys, values = keys[kept].transpose(1, 2), values[kept].transpose(1, 2)
    is_causal = mix is None and piece.start == 0 and (window_tokens is None or window_tokens >= piece.end)
    mask = None
    if not is_causal:
        places = torch.arange(first, piece.end, device=q.device)
        mask = _is_seen(places[piece.start - first :, None] - places, window_tokens)
    if mix is not None and mask is not None:
        return mix(q, keys, values, mask)
    is_grouped = q.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=is_causal, enable_gqa=is_grouped)


def _is_seen(distance: Int[Tensor, "T S"], window_tokens: int | None) -> Bool[Tensor, "T S"]:
    return distance >= 0 if window_tokens is None else (distance >= 0) & (distance < window_tokens)


@final
@dataclass(frozen=True)
class CachedAttention(Attention):
    """A kernel of training that leaves attention to the `Step` of a cache where the model is given one."""

    kernel: Attention

    @override
    def attend(self, q: Tensor, k: Tensor, v: Tensor, window_tokens: int | None, documents: Seen) -> Tensor:
        if isinstance(documents, Prepared) and isinstance(documents.parts, Step):
            return documents.parts.attend(q, k, v, window_tokens=window_tokens)
        return self.kernel(q, k, v, window_tokens=window_tokens, documents=documents)

    @override
    def prepare(
        self,
        documents: Int[Tensor, "B T"] | None,
        *,
        num_tokens: int,
        windows: Collection[int | None],
        device: torch.device,
    ) -> Prepared | None:
        return self.kernel.prepare(documents, num_tokens=num_tokens, windows=windows, device=device)

    @override
    def describe(self, place: KernelTarget) -> str:
        return f"{self.kernel.describe(place)}; over a cache while writing"


cached_sdpa = CachedAttention(sdpa)
