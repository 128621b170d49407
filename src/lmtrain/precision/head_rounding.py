"""The head's three products in fp8, for a loss over some tokens at a time.

States and weight in e4m3, gradients of logits in e5m2 (arXiv 2209.05433), multiplied by torchao as those of the blocks,
each by one scale: the weight is scaled once a micro-batch, states once a chunk. The scale of gradients is known, as in
modded-nanogpt's head: a token's nats change by at most 1 with a logit, so that no pass looks for the largest.
C tokens of a chunk, D width, V vocabulary.
"""

import importlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lmtrain.models.base import LanguageModel
from lmtrain.models.head import OutputHead

# e5m2 then holds 2^-29 to 7: 1 with a z-loss's addition, and a share of 1 / V far above the least.
GRADIENT_SCALE = 2.0**13


@final
@dataclass(frozen=True, kw_only=True)
class Float8Rounding:
    """The operands' formats; `emulate` multiplies them in fp32, for tests on any device."""

    emulate: bool = False
    gradient_scale: float = GRADIENT_SCALE
    gradient_dtype: torch.dtype = torch.float8_e5m2
    _tensors: Any = field(init=False, repr=False)  # torchao's modules, imported before a compiler traces their use
    _scaling: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, module in (("_tensors", "float8_training_tensor"), ("_scaling", "float8_scaling_utils")):
            object.__setattr__(self, name, importlib.import_module(f"torchao.float8.{module}"))

    def weight(self, weight: Float[Tensor, "V D"], /) -> tuple[Float[Tensor, "D V"], Float[Tensor, "V D"]]:
        """Return it in both orders of memory, as 8-bit products want their second factor by columns."""
        rounded = self._rounded(weight, "WEIGHT")
        return rounded.t(), rounded.t().contiguous().t()

    def states(self, states: Float[Tensor, "C D"], /) -> Float[Tensor, "C D"]:
        """Return them by the scale of their largest."""
        return self._rounded(states, "INPUT")

    def gradient(self, scaled: Float[Tensor, "C V"], dtype: torch.dtype, /) -> Float[Tensor, "C V"]:
        """Return the gradient, scaled and cast already."""
        return self._tensors.Float8TrainingTensor(
            scaled,
            scaled.new_full((), self.gradient_scale, dtype=torch.float32),  # filled on the device, without a wait
            dtype,
            self._products(),
            self._tensors.GemmInputRole.GRAD_OUTPUT,
        )

    def _rounded(self, values: Tensor, role: str) -> Tensor:
        return self._scaling.hp_tensor_to_float8_dynamic(
            values, torch.float8_e4m3fn, self._products(), gemm_input_role=self._tensors.GemmInputRole[role]
        )

    def _products(self) -> Any:
        """Return torchao's settings of a layer's products; the tokens of a last chunk are made a multiple of 16."""
        product = partial(self._tensors.ScaledMMConfig, emulate=self.emulate)
        return self._tensors.LinearMMConfig(
            output=product(use_fast_accum=True), grad_input=product(), grad_weight=product(pad_inner_dim=True)
        )


def round_head(model: LanguageModel, *, emulate: bool = False) -> LanguageModel:
    """Give the head, in place, a rounding for its loss."""
    make_head, rounding = model.output_head, Float8Rounding(emulate=emulate)

    def output_head() -> OutputHead:
        return replace(make_head(), rounding=rounding)

    model.output_head = output_head
    return model
