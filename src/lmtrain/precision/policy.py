"""The number formats of a run: of matrix products, and of the weights, gradients and moments behind them.

`auto` takes bf16 where the device has bf16 matrix hardware: CUDA compute capability 8.0 and later, and CPUs with
avx512_bf16 or amx_bf16 (there 2 to 5 times the fp32 rate on the default model's shapes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.machine.number_formats import PrecisionBytes, precision_bytes
from lmtrain.models.base import LanguageModel
from lmtrain.precision.cpu_features import bf16_flags
from lmtrain.precision.device_formats import capability_here, require_tf32
from lmtrain.precision.kept_copies import keep_copies
from lmtrain.precision.narrow_stream import narrow_stream

PrecisionName = Literal["fp32", "tf32", "fp16_mixed", "bf16_mixed", "bf16_true", "fp8"]
Residual = Literal["bf16"]


def as_it_is(model: LanguageModel) -> LanguageModel:
    """Return the model as it is."""
    return model


def nothing_more(model: LanguageModel) -> list[str]:
    """Return no line on the model."""
    del model
    return []


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A set of number formats, and why it was chosen.

    `convert` changes the model itself, under any strategy, and `explain` describes the change beforehand. `residual`
    rounds the residual stream; None leaves it as lookups make it. A casting strategy has it so already.
    `stochastic_rounding` asks the optimizer to round its updates up or down at random, so that small ones count.
    """

    name: PrecisionName
    reason: str = "asked for"
    convert: Callable[[LanguageModel], LanguageModel] = as_it_is
    explain: Callable[[LanguageModel], list[str]] = nothing_more
    residual: Residual | None = None
    stochastic_rounding: bool = False

    @property
    def bytes_of(self) -> PrecisionBytes:
        """Return the bytes of a value by role."""
        return precision_bytes(self.name)

    @property
    def matmul(self) -> MatmulDtype:
        """Return the format of the matrix products, with its peak for the utilization."""
        return self.bytes_of.matmul

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the dtype of activations beside the products."""
        return {4: torch.float32, 2: torch.float16 if self.matmul == "fp16" else torch.bfloat16}[
            self.bytes_of.activations
        ]

    @property
    def casts(self) -> bool:
        """Return whether products run in another dtype than the weights have."""
        return self.bytes_of.activations < self.bytes_of.weights

    @property
    def scales_loss(self) -> bool:
        """Return whether gradients would underflow without a scaled loss."""
        return self.matmul == "fp16"

    def prepare(self, model: LanguageModel, *, strategy_casts: bool) -> LanguageModel:
        """Convert the model, and keep copies of its matrices unless the strategy casts as it gathers."""
        model = self.convert(model)
        if not self.casts or strategy_casts:
            return model
        if self.residual is not None:
            model = narrow_stream(model, dtype=self.compute_dtype)
        return keep_copies(model, dtype=self.compute_dtype)

    def describe(self, *, strategy_casts: bool = False) -> str:
        """Return one line for people: formats, bytes and why; a strategy with a cast while gathering keeps no copy."""
        held = self.bytes_of
        copy = f" + {held.compute_copy} copy" if held.compute_copy and not strategy_casts else ""
        rounding = ", rounded at random" if self.stochastic_rounding else ""
        stream = f", residual stream in {self.residual}" if self.residual else ""
        return (
            f"{self.name} ({self.reason}): products in {self.matmul}{stream}; bytes a parameter: {held.weights} "
            f"weights{rounding}{copy} + {held.gradients} gradients + {held.state} a moment"
        )


def fp32() -> Precision:
    """Compute in fp32 throughout."""
    return Precision(name="fp32")


def tf32(*, device_type: str) -> Precision:
    """Keep all in fp32 and let products round their inputs to 10 bits of fraction.

    Raises: ConfigurationError on a device without it.
    """
    require_tf32(device_type)
    return Precision(name="tf32")


def fp16_mixed() -> Precision:
    """Compute products in fp16 under a scaled loss, with fp32 master weights."""
    return Precision(name="fp16_mixed")


def bf16_mixed(*, residual: Residual | None = None) -> Precision:
    """Compute products in bf16, with fp32 master weights, cast once per optimizer step.

    `residual` "bf16" holds the residual stream in bf16 too.
    """
    return Precision(name="bf16_mixed", residual=residual)


def bf16_true(*, stochastic_rounding: bool = False) -> Precision:
    """Keep weights, gradients and moments in bf16: half the memory, and updates below 1/256 of a weight are lost."""
    convert = partial(cast_parameters, dtype=torch.bfloat16)
    return Precision(name="bf16_true", convert=convert, stochastic_rounding=stochastic_rounding)


def auto(*, device_type: str) -> Precision:
    """Choose bf16_mixed where this machine has bf16 matrix hardware, else fp32."""
    if device_type == "cuda":
        major, minor = capability_here()
        return _choose(fast=major >= 8, device=f"compute capability {major}.{minor}")
    flags = bf16_flags()
    return _choose(fast=bool(flags), device=" and ".join(sorted(flags)) or "a CPU without avx512_bf16 or amx_bf16")


def cast_parameters(model: LanguageModel, *, dtype: torch.dtype) -> LanguageModel:
    """Round every parameter in place; buffers, such as the angles of rotary positions, stay in fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def _choose(*, fast: bool, device: str) -> Precision:
    return Precision(name="bf16_mixed" if fast else "fp32", reason=f"auto: {device}")
