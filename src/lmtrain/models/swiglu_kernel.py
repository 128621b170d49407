"""The gradient of SwiGLU in Triton: each number read and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false


COLUMNS = 2048  # of a row at once


def write_gradient(gradient: Tensor, gate_up: Tensor, of_product: Tensor) -> None:
    """Write the gradient of [..., 2F] numbers, all contiguous."""
    width = of_product.shape[-1]
    num_rows = of_product.numel() // max(1, width)
    if num_rows and width:
        columns = min(COLUMNS, triton.next_power_of_2(width))
        with torch.cuda.device_of(gradient):  # nothing for a CPU
            _write_gradient[num_rows, triton.cdiv(width, columns)](
                gradient, gate_up, of_product, width, COLUMNS=columns
            )


@triton.jit
def _write_gradient(gradient, gate_up, of_product, width, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    at = row * 2 * width + column
    gate = tl.load(gate_up + at, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + at + width, inside, other=0.0).to(tl.float32)
    of_both = tl.load(of_product + row * width + column, inside, other=0.0).to(tl.float32)
    open_ = 1 / (1 + tl.exp(-gate))
    of_gate = of_both * up * open_ * (1 + gate * (1 - open_))
    tl.store(gradient + at, of_gate.to(gradient.dtype.element_ty), inside)
    tl.store(gradient + at + width, (of_both * (gate * open_)).to(gradient.dtype.element_ty), inside)
