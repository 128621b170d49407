"""Context parallelism by a gather of keys and values, for any heads (Llama 3, arXiv 2407.21783 section 3.3.2).

Each rank has the first and the last chunk that others have not yet, as in a zigzag: with the causal mask all ranks have
the same number of pairs. It attends with its own queries over the keys and values of all ranks; their gradients go back
by a reduce-scatter.
B batch, T tokens, t tokens of a slice, H heads, Hkv key and value heads, K head width, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.models.attention.base import Attention, KernelTarget, Prepared, Seen, Windows, seen_tokens
from lmtrain.models.attention.eager import mix_seen
from lmtrain.models.attention.flex import Flex, block_mask
from lmtrain.models.attention.soft_capped import SoftCapped
from lmtrain.models.documents import Documents, starts_document
from lmtrain.models.embeddings import Smear
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.llama import Llama
from lmtrain.models.rope import RotaryEmbedding
from lmtrain.models.self_attention import SelfAttention
from lmtrain.parallel.sequence_slices import (
    SequenceSlices,
    score_slices,
    slice_embeddings,
    slice_first_input,
    slice_inputs,
)
from lmtrain.parallel.tensor_layers import SEQUENCE, move


@final
class ZigzagSlices(SequenceSlices):
    """Slices of two chunks, one early and one late; of one where a sequence does not divide by twice the group."""

    _is_halved = False

    @override
    def enter(self, num_tokens: int, documents: Documents | None = None) -> int:
        self._is_halved = num_tokens % (2 * self.num_ranks) == 0
        return super().enter(num_tokens, documents)

    @property
    @override
    def chunks(self) -> list[list[int]]:
        last = 2 * self.num_ranks - 1
        return [[rank, last - rank] if self._is_halved else [rank] for rank in range(self.num_ranks)]

    def rows(self, num_tokens: int) -> Iterator[tuple[int, int]]:
        """Give the first token of each of this rank's chunks, and the one behind its last."""
        size = num_tokens // sum(len(own) for own in self.chunks)
        for number in self.chunks[self.rank]:
            yield number * size, (number + 1) * size

    def whole(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B T D"]:
        """Put slices together along the sequence; gradients of all ranks are added up."""
        return self.in_order(move(x, "gather", self.group))

    def previous(self, x: Float[Tensor, "B t D"], documents: Int[Tensor, "B T"] | None) -> Float[Tensor, "B t D"]:
        """Return the value of each token's predecessor, zeros for the first token of a document."""
        chunks = x.unflatten(SEQUENCE, (len(self.chunks[self.rank]), -1))
        ends = F.pad(self.whole(chunks[:, :, -1]), (0, 0, 1, 0))  # [B, C + 1, D], zeros before the first chunk
        before = ends[:, self.chunks[self.rank]].unsqueeze(2)
        shifted = torch.cat((before, chunks[:, :, :-1]), dim=2).flatten(SEQUENCE, 2)
        if documents is None:
            return shifted
        return shifted.masked_fill(self.slice(starts_document(documents)).unsqueeze(-1), 0)


@final
@dataclass(frozen=True)
class GatheredKeys(Attention):
    """Attend with the queries of a slice over the keys and values of all slices; whole sequences by `kernel`.

    Flex on a GPU; elsewhere torch's kernel with a mask, or plain products where scores are bent or have sinks.
    """

    kernel: Attention
    slices: ZigzagSlices

    @override
    def attend(
        self,
        q: Float[Tensor, "B H t K"],
        k: Float[Tensor, "B Hkv t K"],
        v: Float[Tensor, "B Hkv t K"],
        window_tokens: int | None,
        documents: Seen,
        *,
        sinks: Float[Tensor, " H"] | None = None,
    ) -> Float[Tensor, "B H t K"]:
        if not self.slices.is_sliced:
            with_sinks: dict[str, Any] = {} if sinks is None else {"sinks": sinks}
            return self.kernel.attend(q, k, v, window_tokens, documents, **with_sinks)
        assert isinstance(documents, Prepared)
        fused = torch.cat((k, v), dim=1).transpose(1, 2)  # [B, t, 2 Hkv, K]: one message
        whole = self.slices.whole(fused.flatten(2)).unflatten(2, fused.shape[2:]).transpose(1, 2)
        keys, values = whole.chunk(2, dim=1)
        masks = documents.parts[window_tokens]
        mixed: list[Tensor] = []
        for rows, mask, (_, end) in zip(
            q.chunk(len(masks), dim=2), masks, self.slices.rows(whole.shape[2]), strict=True
        ):
            mixed.append(self._mix(rows, keys[:, :, :end], values[:, :, :end], mask, sinks))
        return torch.cat(mixed, dim=2)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, sinks: Tensor | None) -> Tensor:
        cap = self.kernel.cap if isinstance(self.kernel, SoftCapped) else None
        if q.is_cuda:
            flex, seen = Flex(soft_cap=cap), Prepared({None: mask})
            if sinks is None:
                return flex(q, k, v, documents=seen)
            return flex.with_sinks(q, k, v, sinks, window_tokens=None, documents=seen)
        if cap is not None or sinks is not None:
            return mix_seen(q, k, v, mask, soft_cap=cap, sinks=sinks)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

    @override
    def prepare(
        self, documents: Int[Tensor, "B T"] | None, *, num_tokens: int, windows: Windows, device: torch.device
    ) -> Prepared | None:
        """Make the masks of each window: of each chunk's tokens and all before its end."""
        if not self.slices.is_sliced:
            return self.kernel.prepare(documents, num_tokens=num_tokens, windows=windows, device=device)

        def mask(window: int | None, first: int, end: int) -> Any:
            earlier = None if documents is None else documents[:, :end]
            if device.type == "cuda":
                return block_mask(earlier, num_tokens=end, window_tokens=window, device=device, first_row=first)
            return seen_tokens(end, window_tokens=window, device=device, documents=earlier)[..., first:, :]

        rows = list(self.slices.rows(num_tokens))
        return Prepared({window: [mask(window, first, end) for first, end in rows] for window in windows})

    @override
    def describe(self, place: KernelTarget) -> str:
        kernel = "flex" if place.device_type == "cuda" else "sdpa"
        return f"{kernel} over keys and values gathered from {self.slices.num_ranks} ranks"


def gather_keys(model: GPT2 | Llama, slices: ZigzagSlices) -> None:
    """Let a model compute with a slice of the sequence, and within attention with the keys and values of all."""
    kernel = GatheredKeys(model.attention, slices)
    model.attention = kernel
    for module in model.layers.modules():
        if isinstance(getattr(module, "attention", None), Attention):
            setattr(module, "attention", kernel)  # noqa: B010  # of every block and mixer
        if isinstance(module, SelfAttention) and module.key_smear is not None:
            _smear_slices(module.key_smear, slices)
    if isinstance(model, GPT2):
        slice_first_input(model, slices)
    else:
        slice_embeddings(model, slices)
        for rope in (model.rope, model.window_rope):
            if rope is not None:
                _slice_rotations(rope, slices)
        for table in model.value_embeddings.values():
            slice_inputs(table, slices)
    score_slices(model, slices)


def _slice_rotations(rope: RotaryEmbedding, slices: ZigzagSlices) -> None:
    whole = rope.forward

    def forward(num_tokens: int, documents: Documents | None = None) -> tuple[Tensor, Tensor]:
        cos, sin = whole(num_tokens, documents)  # [*B, T, 1, R] each
        return slices.slice(cos, axis=-3), slices.slice(sin, axis=-3)

    rope.forward = forward


def _smear_slices(smear: Smear, slices: ZigzagSlices) -> None:
    whole = smear.forward

    def forward(x: Tensor, documents: Any = None) -> Tensor:
        if not slices.is_sliced:
            return whole(x, documents)
        pairs = torch.stack((slices.previous(x, documents), x), dim=2).flatten(SEQUENCE, 2)
        return whole(pairs)[:, 1::2]

    smear.forward = forward
