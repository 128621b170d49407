"""One linear layer per group of rows, for rows sorted by group: most of a mixture of experts' time.

Two operators, opaque to torch.compile: groups of any size never break a graph. On a GPU with the grouped kernel
of torch (bf16, Hopper and later) all groups run in one launch and nothing waits for the device; elsewhere they run one
after the other. M rows, E groups, I inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import register_flop_formula

GROUPED_KERNEL_SINCE = (9, 0)  # compute capability
ALIGNED_TO = 8  # bf16 numbers: the kernel's rows begin at multiples of 16 bytes


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group of rows by its own matrix: [M, I], [E, O, I], int32 [E] -> [M, O].

    Group e is rows ends[e - 1] to ends[e]; the last end is M. A group may be empty.
    """
    return _grouped_linear(x, weight, ends)


@torch.library.custom_op("lmtrain::grouped_linear", mutates_args=())
def _grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if has_grouped_kernel(x, weight):
        return F.grouped_mm(x, weight.mT, offs=ends)
    y = x.new_empty(x.shape[0], weight.shape[1])
    for matrix, start, end in _groups(weight, ends):
        torch.mm(x[start:end], matrix.mT, out=y[start:end])
    return y


@torch.library.custom_op("lmtrain::grouped_outer", mutates_args=())
def _grouped_outer(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """Return the gradient of the matrices: [M, O], [M, I], int32 [E] -> [E, O, I]."""
    if has_grouped_kernel(gradient, x):
        return F.grouped_mm(gradient.mT, x, offs=ends)
    outer = x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])
    for matrix, start, end in _groups(outer, ends):
        torch.mm(gradient[start:end].mT, x[start:end], out=matrix)
    return outer


def has_grouped_kernel(first: Tensor, second: Tensor) -> bool:
    """Return whether torch's grouped kernel can multiply these."""
    return (
        first.is_cuda
        and first.dtype == second.dtype == torch.bfloat16
        and all(size % ALIGNED_TO == 0 for size in (first.shape[-1], *second.shape[-2:]))
        and torch.cuda.get_device_capability(first.device) >= GROUPED_KERNEL_SINCE
    )


def _groups(matrices: Tensor, ends: Tensor) -> list[tuple[Tensor, int, int]]:
    stops: list[int] = ends.tolist()
    return list(zip(matrices, [0, *stops[:-1]], stops, strict=True))


@_grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    del ends
    return x.new_empty(x.shape[0], weight.shape[1])


@_grouped_outer.register_fake
def _(gradient: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], gradient.shape[1], x.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    gradient = gradient.contiguous()
    of_x = _grouped_linear(gradient, weight.mT, ends) if ctx.needs_input_grad[0] else None
    of_weight = _grouped_outer(gradient, x, ends) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


_grouped_linear.register_autograd(_differentiate, setup_context=_save)


@register_flop_formula(torch.ops.lmtrain.grouped_linear)
def _linear_flops(x: tuple[int, int], weight: tuple[int, int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * weight[1] * weight[2]


@register_flop_formula(torch.ops.lmtrain.grouped_outer)
def _outer_flops(gradient: tuple[int, int], x: tuple[int, int], *_: Any, **__: Any) -> int:
    return 2 * x[0] * gradient[1] * x[1]
