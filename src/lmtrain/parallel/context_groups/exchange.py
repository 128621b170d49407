"""The ranks of a context group hold a slice of the same sequence each, and heads within attention: moves in between.

An all-to-all turns slices of all heads into the whole sequence of some, and another one back; its gradient is the other
one (DeepSpeed Ulysses, arXiv 2309.14509). The messages are torch's functional collectives, taken into its graphs by the
compiler. B batch, T tokens, t those of a slice, R ranks of the group, E features of all heads, F of a rank's, e of a
part's share.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

from lmtrain.parallel.tensor_groups.regions import OPERATORS, SEQUENCE, gathered, summed

FEATURES: Final = 2  # the axis of heads


@final
class HeadExchange:
    """The moves within one context group.

    A sequence not divided by it, as of a text being written, stays whole on every rank, its heads alone shared out.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group().group_name
        self.num_ranks, self.rank = mesh.size(), mesh.get_local_rank()
        self._is_sliced = False

    def slice(self, x: Shaped[Tensor, "B T *D"]) -> Shaped[Tensor, "B t *D"]:
        """Keep this rank's slice of the sequence: of its gradient, too, this rank's part."""
        self._is_sliced = x.shape[SEQUENCE] % self.num_ranks == 0
        return x.chunk(self.num_ranks, dim=SEQUENCE)[self.rank].contiguous() if self._is_sliced else x

    def gather(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B T D"]:
        """Put slices together, without a gradient."""
        return gathered(x, self.group, self.num_ranks) if self._is_sliced else x

    def to_heads(self, x: Float[Tensor, "B t E"], parts: Sequence[int]) -> Float[Tensor, "B T F"]:
        """Give each rank the whole sequence of its share of the features of each fused part."""
        if self._is_sliced:
            return _ToHeads.apply(x, self.group, self.num_ranks, tuple(parts))
        return _by_ranks(x, parts, self.num_ranks)[self.rank]

    def to_slices(self, x: Float[Tensor, "B T F"]) -> Float[Tensor, "B t E"]:
        """Give each rank its slice of all features."""
        if self._is_sliced:
            return _ToSlices.apply(x, self.group, self.num_ranks, (x.shape[FEATURES] * self.num_ranks,))
        assert not torch.is_grad_enabled(), "sequences of training are divided"
        return gathered(x.transpose(SEQUENCE, FEATURES), self.group, self.num_ranks).transpose(SEQUENCE, FEATURES)

    def total(self, *sums: Tensor) -> tuple[Tensor, ...]:
        """Add up sums over slices, in one message: the same on all ranks, the first alone with a gradient.

        Every rank differentiates the total, so that a mean over ranks of their gradients is that of the totals.
        """
        if not self._is_sliced:
            return sums
        whole = summed(torch.stack([one.detach().double() for one in sums]), self.group).unbind()
        first, *others = (total.to(one.dtype, copy=True) for total, one in zip(whole, sums, strict=True))
        return _Total.apply(sums[0], first, self.num_ranks), *others

    def mean(self, x: Tensor) -> Tensor:
        """Average a mean over each slice, without a gradient."""
        return summed(x.detach(), self.group) / self.num_ranks if self._is_sliced else x


class _ToHeads(torch.autograd.Function):
    """The whole sequence of a rank's heads from slices of all."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int, parts: tuple[int, ...]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks, ctx.parts = group, num_ranks, parts
        return _heads_of_slices(x, group, num_ranks, parts)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _slices_of_heads(gradient, ctx.group, ctx.num_ranks, ctx.parts), None, None, None


class _ToSlices(torch.autograd.Function):
    """A slice of all heads from the whole sequence of a rank's."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int, parts: tuple[int, ...]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks, ctx.parts = group, num_ranks, parts
        return _slices_of_heads(x, group, num_ranks, parts)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _heads_of_slices(gradient, ctx.group, ctx.num_ranks, ctx.parts), None, None, None


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


def _heads_of_slices(
    x: Float[Tensor, "B t E"], group: str, num_ranks: int, parts: Sequence[int]
) -> Float[Tensor, "B T F"]:
    received = _exchanged(_by_ranks(x, parts, num_ranks), group)  # [R, B, t, F], by slices
    return received.transpose(0, SEQUENCE).flatten(SEQUENCE, 2)


def _slices_of_heads(
    x: Float[Tensor, "B T F"], group: str, num_ranks: int, parts: Sequence[int]
) -> Float[Tensor, "B t E"]:
    received = _exchanged(
        x.unflatten(SEQUENCE, (num_ranks, -1)).transpose(0, SEQUENCE), group
    )  # [R, B, t, F], by heads
    shares = received.movedim(0, FEATURES).split([part // num_ranks for part in parts], dim=-1)  # [B, t, R, e] each
    return torch.cat([share.flatten(FEATURES) for share in shares], dim=-1)


def _by_ranks(x: Float[Tensor, "B t E"], parts: Sequence[int], num_ranks: int) -> Float[Tensor, "R B t F"]:
    """Return the features of each rank's heads, its share of each part."""
    shares = [part.unflatten(-1, (num_ranks, -1)) for part in x.split(list(parts), dim=-1)]  # [B, t, R, e] each
    return torch.cat(shares, dim=-1).movedim(FEATURES, 0)


def _exchanged(x: Float[Tensor, "R B t F"], group: str) -> Float[Tensor, "R B t F"]:
    """Send each rank its row, and return the rows of all for this one."""
    ones = [1] * len(x)
    return OPERATORS.wait_tensor(OPERATORS.all_to_all_single(x.contiguous(), ones, ones, group))
