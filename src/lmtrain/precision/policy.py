"""The number formats of a run: of matrix products, and of the weights, gradients and moments behind them.

`auto` takes bf16 where the device has bf16 matrix hardware: CUDA compute capability 8.0 and later, and CPUs with
avx512_bf16 or amx_bf16 (there 2 to 5 times the fp32 rate on the default model's shapes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.models.base import LanguageModel, unchanged
from lmtrain.precision.cast_weights import keep_copies, narrow_stream
from lmtrain.precision.cpu_features import bf16_flags


def capability_here() -> tuple[int, int]:
    """Return the compute capability of this rank's GPU."""
    return torch.cuda.get_device_capability()


def require_products(facts: PrecisionFacts, device_type: str) -> PrecisionFacts:
    """Return the facts of a precision with products on this device."""
    if facts.gpu_since is None:
        return facts
    if device_type != "cuda":
        raise ConfigurationError(facts.refusal(f"this run is on {device_type}"))
    found = capability_here()
    if found < facts.gpu_since:
        raise EnvironmentProblem(facts.refusal(f"this one has {found[0]}.{found[1]}"))
    return facts


Residual = Literal["bf16"]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A set of number formats, and why it was chosen.

    `convert` changes the model itself, under any strategy, and `explain` describes the change beforehand.
    `stochastic_rounding` asks the optimizer to round its updates up or down at random, so that small ones count.
    """

    facts: PrecisionFacts
    reason: str = "asked for"
    convert: Callable[[LanguageModel], LanguageModel] = unchanged
    explain: Callable[[LanguageModel], list[str]] = lambda _: []
    stochastic_rounding: bool = False

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the dtype of activations other than products."""
        return getattr(torch, self.facts.compute_dtype)

    @property
    def casts(self) -> bool:
        """Return whether products run in another dtype than the weights have."""
        return self.facts.bytes_of.activations < self.facts.bytes_of.weights

    @property
    def scales_loss(self) -> bool:
        """Return whether gradients would underflow without a scaled loss."""
        return self.facts.bytes_of.matmul == "fp16"

    def prepare(self, model: LanguageModel, *, strategy_casts: bool) -> LanguageModel:
        """Convert the model, and keep the copies of its matrices that are counted, unless the strategy casts."""
        model = self.convert(model)
        if not self.casts or strategy_casts:
            return model
        if self.facts.residual is not None:
            model = narrow_stream(model, dtype=self.compute_dtype)
        return keep_copies(model, dtype=self.compute_dtype) if self.facts.bytes_of.compute_copy else model

    def describe(self, *, strategy_casts: bool = False) -> str:
        """Return one line for people: formats and why; a strategy with a cast while gathering keeps no copy."""
        held = self.facts.bytes_of
        copy = ", a copy of the weights" if held.compute_copy and not strategy_casts else ""
        rounding = ", weights rounded at random" if self.stochastic_rounding else ""
        stream = f", residual stream in {self.facts.residual}" if self.facts.residual else ""
        return f"{self.facts.name} ({self.reason}): products in {held.matmul}{stream}{copy}{rounding}"


FP32_FACTS: Final = PrecisionFacts(name="fp32", bytes_of=PrecisionBytes(matmul="fp32"))
TF32_FACTS: Final = PrecisionFacts(
    name="tf32", bytes_of=PrecisionBytes(matmul="tf32"), gpu_since=(8, 0), instead="precision=fp32"
)
FP16_MIXED_FACTS: Final = PrecisionFacts(
    name="fp16_mixed",
    bytes_of=PrecisionBytes(compute_copy=2, activations=2, matmul="fp16"),
    compute_dtype="float16",
)
BF16_TRUE_FACTS: Final = PrecisionFacts(
    name="bf16_true",
    bytes_of=PrecisionBytes(weights=2, gradients=2, state=2, activations=2, matmul="bf16"),
    compute_dtype="bfloat16",
    casts_parameters=True,
)


def bf16_mixed_facts(*, residual: Residual | None = None) -> PrecisionFacts:
    """Keep a copy of the weights in 2 bytes."""
    held = PrecisionBytes(compute_copy=2, activations=2, matmul="bf16")
    return PrecisionFacts(name="bf16_mixed", bytes_of=held, compute_dtype="bfloat16", residual=residual)


def auto_facts(*, has_bf16: bool) -> PrecisionFacts:
    """Be bf16_mixed where the machine has bf16 matrix hardware, else fp32."""
    return bf16_mixed_facts() if has_bf16 else FP32_FACTS


def fp32() -> Precision:
    """Compute in fp32 throughout."""
    return Precision(facts=FP32_FACTS)


def tf32(*, device_type: str) -> Precision:
    """Keep all in fp32 and let products round their inputs to 10 bits of fraction."""
    return Precision(facts=require_products(TF32_FACTS, device_type))


def fp16_mixed() -> Precision:
    """Compute products in fp16 under a scaled loss, with fp32 master weights."""
    return Precision(facts=FP16_MIXED_FACTS)


def bf16_mixed(*, residual: Residual | None = None) -> Precision:
    """Compute products in bf16, with fp32 master weights, cast once per optimizer step.

    `residual` "bf16" holds the residual stream in bf16 too.
    """
    return Precision(facts=bf16_mixed_facts(residual=residual))


def bf16_true(*, stochastic_rounding: bool = False) -> Precision:
    """Keep weights, gradients and moments in bf16: half the memory, and updates below 1/256 of a weight are lost."""
    convert = partial(cast_parameters, dtype=torch.bfloat16)
    return Precision(facts=BF16_TRUE_FACTS, convert=convert, stochastic_rounding=stochastic_rounding)


def auto(*, device_type: str) -> Precision:
    """Choose bf16_mixed where this machine has bf16 matrix hardware, else fp32."""
    if device_type == "cuda":
        major, minor = capability_here()
        has_bf16, device = major >= 8, f"compute capability {major}.{minor}"
    else:
        flags = bf16_flags()
        has_bf16, device = bool(flags), " and ".join(sorted(flags)) or "a CPU without avx512_bf16 or amx_bf16"
    return Precision(facts=auto_facts(has_bf16=has_bf16), reason=f"auto: {device}")


def cast_parameters(model: LanguageModel, *, dtype: torch.dtype) -> LanguageModel:
    """Round every parameter in place; buffers, such as the angles of rotary positions, stay in fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model
