"""The ranks of a tensor group hold the same tokens, a slice of the sequence each, or parts of a sum: moves in between.

Each move sends one message, and its gradient the message back. Sequence parallelism: arXiv 2205.05198 section 4.2.2.
The messages are torch's functional collectives, taken into its graphs by the compiler. B batch, T tokens, D width, R
ranks of the group.
"""

from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from typing_extensions import override

SEQUENCE: Final = 1  # the axis of tokens
OPERATORS: Final[Any] = torch.ops._c10d_functional  # noqa: SLF001


@final
class Regions:
    """The moves within one tensor group; a sequence not divided by it stays whole, as of a text being written."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self._group = mesh.get_group().group_name
        self._num_ranks, self._rank = mesh.size(), mesh.get_local_rank()
        self._is_sliced = False

    def slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Enter the layers: keep this rank's slice of the whole sequence of tokens."""
        self._is_sliced = x.shape[SEQUENCE] % self._num_ranks == 0
        return _Slice.apply(x, self._group, self._num_ranks, self._rank) if self._is_sliced else x

    def gather(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Put slices together, for work divided over the ranks: gradients are parts of a sum."""
        return (_Gather if self._is_sliced else _SumOfGradients).apply(x, self._group, self._num_ranks)

    def sum_to_slice(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, and keep this rank's slice."""
        return (_Scatter if self._is_sliced else _Sum).apply(x, self._group, self._num_ranks)

    def sum_to_whole(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Add up the parts of all ranks, on all ranks."""
        return _Sum.apply(x, self._group, self._num_ranks)


class _Slice(torch.autograd.Function):
    """A rank's slice of whole sequences; gradients of slices are gathered."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int, rank: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks = group, num_ranks
        num_tokens = x.shape[SEQUENCE] // num_ranks
        return x.narrow(SEQUENCE, rank * num_tokens, num_tokens).contiguous()

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gathered(gradient, ctx.group, ctx.num_ranks), None, None, None


class _Gather(torch.autograd.Function):
    """Whole sequences from slices; parts of gradients are added up, a slice on each rank."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks = group, num_ranks
        return gathered(x, group, num_ranks)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return scattered(gradient, ctx.group, ctx.num_ranks), None, None


class _Scatter(torch.autograd.Function):
    """Parts of a sum added up, a slice of it on each rank; gradients of slices are gathered."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.group, ctx.num_ranks = group, num_ranks
        return scattered(x, group, num_ranks)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gathered(gradient, ctx.group, ctx.num_ranks), None, None


class _Sum(torch.autograd.Function):
    """Parts of a sum added up on every rank; their gradient is that of the sum, the same on all."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx, num_ranks
        return summed(x, group)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        del ctx
        return gradient, None, None


class _SumOfGradients(torch.autograd.Function):
    """The same on every rank; gradients are parts of a sum."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: str, num_ranks: int) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        del num_ranks
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return summed(gradient, ctx.group), None, None


def gathered(x: Float[Tensor, "B t D"], group: str, num_ranks: int) -> Float[Tensor, "B T D"]:
    """Put the slices of all ranks together, in order of ranks."""
    slices: Tensor = OPERATORS.wait_tensor(OPERATORS.all_gather_into_tensor(x.contiguous(), num_ranks, group))
    return slices.view(num_ranks, *x.shape).transpose(0, SEQUENCE).flatten(SEQUENCE, 2)


def scattered(x: Float[Tensor, "B T D"], group: str, num_ranks: int) -> Float[Tensor, "B t D"]:
    """Add up the parts of all ranks and return this rank's slice."""
    slices = x.unflatten(SEQUENCE, (num_ranks, -1)).transpose(0, SEQUENCE).contiguous()  # [R, B, t, D]
    return OPERATORS.wait_tensor(OPERATORS.reduce_scatter_tensor(slices.flatten(0, 1), "sum", num_ranks, group))


def summed(x: Float[Tensor, "B T D"], group: str) -> Float[Tensor, "B T D"]:
    """Add up the parts of all ranks."""
    return OPERATORS.wait_tensor(OPERATORS.all_reduce(x.contiguous(), "sum", group))
