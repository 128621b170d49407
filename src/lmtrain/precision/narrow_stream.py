"""The residual stream in the format of the products, as in every loop with weights gathered in that format.

Autocast leaves looked-up rows in fp32, and sums of fp32 and bf16 stay fp32, so the stream takes 4 bytes a number from
the first layer to the last. Rounded where it begins, it takes 2: half of its share in every layer's kept activations,
and of the traffic of norms and sums. Norms compute in fp32 inside. Each sum is rounded to 8 bits of fraction.
"""

from typing import Any

import torch
from torch import Tensor, nn

from lmtrain.models.base import LanguageModel
from lmtrain.precision.specialize import Members, specialize


def narrow_stream(model: LanguageModel, *, dtype: torch.dtype) -> LanguageModel:
    """Round every table's looked-up rows to `dtype`, in place; tables and their gradients stay as they are."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            specialize(module, _rounding, dtype)
    return model


def _rounding(kind: type[nn.Embedding], dtype: torch.dtype) -> Members:
    def forward(self: Any, tokens: Tensor) -> Tensor:
        found: Tensor = kind.forward(self, tokens)
        return found.to(dtype)

    return {"forward": forward}
