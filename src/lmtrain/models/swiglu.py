"""SiLU of a gate times an up-projection, with a gradient of one pass over memory on a GPU.

Inductor (torch 2.11 to 2.13) joins the gradients of gate and up in a kernel that computes both for each number and
keeps one: twice the bytes. F feed-forward width, E = 2 F.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.models.triton_kernels import CAN_LAUNCH, KERNEL_DTYPES


def swiglu(gate_up: Float[Tensor, "*N E"]) -> Float[Tensor, "*N F"]:
    """Gate by the SiLU of the first half (arXiv 2002.05202): [..., 2F] -> [..., F]."""
    return _OnePassBack.apply(gate_up) if has_kernel(gate_up) else _product(gate_up)


def has_kernel(gate_up: Tensor) -> bool:
    """Tell whether the kernel of the gradient runs on these."""
    return CAN_LAUNCH and gate_up.is_cuda and gate_up.dtype in KERNEL_DTYPES


def _product(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _OnePassBack(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, gate_up: Float[Tensor, "*N E"]) -> Float[Tensor, "*N F"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(gate_up)
        return _product(gate_up)

    @staticmethod
    @override
    def backward(ctx: Any, of_product: Float[Tensor, "*N F"]) -> Float[Tensor, "*N E"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gate_up,) = ctx.saved_tensors
        return swiglu_gradient(gate_up, of_product)


@torch.library.custom_op("lmtrain::swiglu_gradient", mutates_args=())
def swiglu_gradient(gate_up: Tensor, of_product: Tensor) -> Tensor:
    """Return the gradient of both halves: [..., 2F], [..., F] -> [..., 2F], on a GPU or in Triton's interpreter."""
    from lmtrain.models.swiglu_kernel import write_gradient  # Triton is not on every system

    gradient = torch.empty_like(gate_up, memory_format=torch.contiguous_format)
    write_gradient(gradient, gate_up.contiguous(), of_product.contiguous())
    return gradient


@swiglu_gradient.register_fake
def _(gate_up: Tensor, of_product: Tensor) -> Tensor:
    del of_product
    return torch.empty_like(gate_up, memory_format=torch.contiguous_format)
