"""The feed-forward layer of a block: dense, or gated by SwiGLU.

The gradient of SwiGLU is one pass over memory on a GPU: inductor (torch 2.11 to 2.13) joins the gradients of gate and
up in a kernel that computes both for each number and keeps one, which takes twice the bytes.
B batch, T tokens, D width, F feed-forward width, E = 2 F.
"""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lmtrain.errors import ConfigurationError, suggest

KERNEL_DTYPES: Final = frozenset({torch.bfloat16, torch.float16, torch.float32})  # they compute in fp32


def _can_launch() -> bool:
    """Return whether Triton is installed, with a C compiler and the headers of Python for its launches.

    Without them training goes on by torch's own operations.
    """
    chosen = os.environ.get("CC")  # where it is set Triton looks for no other
    has_compiler = any(map(shutil.which, ("gcc", "clang") if chosen is None else (chosen,)))
    return has_compiler and (Path(sysconfig.get_path("include")) / "Python.h").is_file() and bool(find_spec("triton"))


CAN_LAUNCH: Final = _can_launch()  # once: a compiler that traces a model does not look at files


def swiglu(gate_up: Float[Tensor, "*N E"]) -> Float[Tensor, "*N F"]:
    """Gate by the SiLU of the first half (arXiv 2002.05202): [..., 2F] -> [..., F]."""
    return _OnePassBack.apply(gate_up) if has_kernel(gate_up) else _product(gate_up)


def has_kernel(gate_up: Tensor) -> bool:
    """Return whether the kernel of the gradient runs on these."""
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


Activation = Literal["swiglu", "geglu_tanh", "relu_squared"]
ACTIVATIONS: tuple[Activation, ...] = ("swiglu", "geglu_tanh", "relu_squared")
GeluApproximate = Literal["tanh", "none"]  # torch's words
GELU_APPROXIMATES: tuple[GeluApproximate, ...] = ("tanh", "none")


class SwiGLU(nn.Module):
    """Gate an up-projection by the SiLU of another, then project down (arXiv 2002.05202)."""

    def __init__(self, width: int, feed_forward_width: int, *, biases: bool = False) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * feed_forward_width, bias=biases)
        self.down = nn.Linear(feed_forward_width, width, bias=biases)

    @property
    def fused_rows(self) -> dict[str, tuple[int, ...]]:
        """Return the rows of each matrix in a fused weight: gate, up."""
        return {"gate_up.weight": (self.down.in_features,) * 2}

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(swiglu(self.gate_up(x)))


@final
class GeGLU(SwiGLU):
    """Gate by GELU, approximated by tanh (Gemma)."""

    @override
    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.gelu(gate, approximate="tanh") * up)


@final
class SquaredReLU(nn.Module):
    """Project up, square the positive values, project down (arXiv 2109.08668)."""

    def __init__(self, width: int, feed_forward_width: int, *, biases: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(width, feed_forward_width, bias=biases)
        self.down = nn.Linear(feed_forward_width, width, bias=biases)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(F.relu(self.up(x)).square())


@final
class GELU(nn.Module):
    """Project up, apply GELU (arXiv 1606.08415) by tanh or exactly, project down, with biases as GPT-2 has."""

    def __init__(
        self, width: int, feed_forward_width: int, *, biases: bool = True, approximate: GeluApproximate = "tanh"
    ) -> None:
        super().__init__()
        if approximate not in GELU_APPROXIMATES:
            known = " or ".join(GELU_APPROXIMATES)
            near = suggest(str(approximate), GELU_APPROXIMATES)
            raise ConfigurationError(f"model.gelu_approximate={approximate} is not {known}.{near}")
        self.approximate: GeluApproximate = approximate
        self.up = nn.Linear(width, feed_forward_width, bias=biases)
        self.down = nn.Linear(feed_forward_width, width, bias=biases)

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Transform each token: [B, T, D] -> [B, T, D]."""
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


def build_feed_forward(
    activation: str, width: int, feed_forward_width: int, *, biases: bool = False
) -> SwiGLU | SquaredReLU:
    """Build the feed-forward layer of model.activation."""
    kinds = {"swiglu": SwiGLU, "geglu_tanh": GeGLU, "relu_squared": SquaredReLU}
    if activation not in kinds:
        known = ", ".join(ACTIVATIONS)
        raise ConfigurationError(f"model.activation={activation} is not {known}.{suggest(activation, ACTIVATIONS)}")
    return kinds[activation](width, feed_forward_width, biases=biases)
