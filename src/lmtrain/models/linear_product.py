"""A linear layer's product by itself: for whoever holds a part of its matrix.

`B` batch, `T` tokens, `I` inputs, `O` outputs.
"""

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class HasProduct(Protocol):
    """A linear layer with a product of its own, [B, T, I] by [O, I]; both sides of a matrix divide by `multiple`."""

    multiple: int

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply with a part of the matrix and of the bias: [B, T, I] -> [B, T, O]."""
        ...
