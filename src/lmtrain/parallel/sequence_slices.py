"""Slices of the sequence on the ranks of a context group: what both ways of attending over them share.

A rank embeds, transforms and scores the tokens of its slice; attention alone needs other slices. Weights stay whole,
and their gradients are parts of a sum over the group.
B batch, T tokens, t tokens of a slice, C chunks of a sequence, D width.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from lmtrain.models.documents import Documents, EarlierTokens
from lmtrain.models.gpt2 import GPT2
from lmtrain.models.head import Loss, LossTotal, OutputHead
from lmtrain.models.llama import Llama
from lmtrain.models.stages import LayerStream
from lmtrain.parallel.tensor_layers import SEQUENCE, Group, gathered, summed
from lmtrain.parallel.tensor_parallel import after


class SequenceSlices:
    """The slices of one context group, each of consecutive tokens.

    A sequence not divided by the group, or that continues a cached text, stays whole on every rank.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.num_ranks, self.rank = mesh.size(), mesh.get_local_rank()
        self.group = Group(mesh.get_group().group_name, self.num_ranks, self.rank)
        self.is_sliced = False

    def enter(self, num_tokens: int, documents: Documents | None = None) -> int:
        """Slice sequences of this length, or leave them whole; return the tokens of each on this rank."""
        self.is_sliced = num_tokens % self.num_ranks == 0 and not isinstance(documents, EarlierTokens)
        return num_tokens // self.num_ranks if self.is_sliced else num_tokens

    @property
    def chunks(self) -> list[list[int]]:
        """Return the chunks of each rank, numbered along the sequence."""
        return [[rank] for rank in range(self.num_ranks)]

    def slice(self, x: Shaped[Tensor, "B T *D"], *, axis: int = SEQUENCE) -> Shaped[Tensor, "B t *D"]:
        """Keep this rank's slice of the sequence: of its gradient, too, this rank's part."""
        if not self.is_sliced:
            return x
        num_chunks = sum(len(own) for own in self.chunks)
        chunks = x.chunk(num_chunks, dim=axis)
        return torch.cat([chunks[number] for number in self.chunks[self.rank]], dim=axis)

    def gather(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B T D"]:
        """Put slices together, without a gradient."""
        return self.in_order(gathered(x, self.group)) if self.is_sliced else x

    def in_order(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return the chunks of all ranks, one rank after another, along the sequence."""
        order = [number for own in self.chunks for number in own]
        if order == sorted(order):
            return x
        chunks = x.chunk(len(order), dim=SEQUENCE)
        return torch.cat([chunks[order.index(number)] for number in range(len(order))], dim=SEQUENCE)

    def total(self, *sums: Tensor) -> tuple[Tensor, ...]:
        """Add up sums over slices, in one message: the same on all ranks, the first alone with a gradient.

        Every rank differentiates the total, so that a mean over ranks of their gradients is that of the totals.
        """
        if not self.is_sliced:
            return sums
        whole = summed(torch.stack([one.detach().double() for one in sums]), self.group).unbind()
        first, *others = (total.to(one.dtype, copy=True) for total, one in zip(whole, sums, strict=True))
        return _Total.apply(sums[0], first, self.num_ranks), *others


class _Total(torch.autograd.Function):
    """A sum over the slices of all ranks, differentiated on each of them."""

    @staticmethod
    @override
    def forward(ctx: Any, of_slice: Tensor, whole: Tensor, num_ranks: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del of_slice
        ctx.num_ranks = num_ranks
        return whole.clone()

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * ctx.num_ranks, None, None


def score_slices(model: GPT2 | Llama, slices: SequenceSlices) -> None:
    """Let each rank score its own tokens, and all report the sums of the whole sequence."""
    features, end, score, logits = model.features, model.end, model.score, model.logits

    def entering(tokens: Tensor, documents: Documents | None = None) -> tuple[Tensor, Tensor | None]:
        slices.enter(tokens.shape[SEQUENCE], documents)
        return features(tokens, documents)

    def of_slice(stream: LayerStream) -> tuple[Tensor, Tensor | None]:
        hidden, penalty = end(stream)
        return hidden, None if penalty is None else slices.total(penalty)[0]

    def of_whole(head: OutputHead, hidden: Tensor, targets: Tensor, loss: Loss) -> LossTotal:
        return LossTotal(*slices.total(*score(head, hidden, slices.slice(targets), loss)))

    vars(model).update(features=entering, end=of_slice, score=of_whole)
    vars(model)["logits"] = lambda hidden: logits(slices.gather(hidden))


def slice_inputs(table: nn.Module, slices: SequenceSlices) -> None:
    """Let a table look up this rank's tokens alone."""
    table.register_forward_pre_hook(lambda _, inputs: (slices.slice(inputs[0]),))


def slice_first_input(model: GPT2, slices: SequenceSlices) -> None:
    """Keep this rank's slice from the first layer on, before a tensor group takes slices of it."""
    model.layers[0].register_forward_pre_hook(lambda _, inputs: (slices.slice(inputs[0]), *inputs[1:]), prepend=True)


def slice_embeddings(model: Llama, slices: SequenceSlices) -> None:
    """Embed this rank's tokens alone, or slice the sum with the vectors of tokens before."""
    embedding = model.embedding
    if embedding.smear is not None:
        embedding.register_forward_hook(after(slices.slice), prepend=True)
        return
    for table in (embedding.token, embedding.bigram):
        if table is not None:
            slice_inputs(table, slices)
