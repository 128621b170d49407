"""A precision's facts: bytes of a value by role, and formats."""

from dataclasses import dataclass
from typing import ClassVar

from lmtrain.accounting.machine.number_formats import PrecisionBytes
from lmtrain.errors import wrong


def fp8_width(gather: str, *, recipe: str, min_width: int) -> int | None:
    """Return the shortest side of matrices gathered in fp8: by one scale each, which products by rows do not take."""
    if gather == "fp8" and recipe != "tensorwise":
        raise wrong("precision.gather", f"bf16 with precision.recipe={recipe}", gather, "precision.recipe=tensorwise")
    return min_width if gather == "fp8" else None


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts:
    """A precision's formats; `name` is its word, or the word of its choice.

    `compute_dtype` is torch's word for activations next to the products. `casts_parameters` computes with the weights
    themselves, rounded, without a kept copy. `residual` rounds the residual stream, None leaves it as it is.
    `fp8_width` is the shortest side of the blocks' matrices that a strategy gathers in fp8, None gathers none so.
    `gpu_since` is the first compute capability with its products, None for any device; `asked` are the settings of
    that need where there are more than the name, and `instead` is the nearest setting for other devices.
    """

    group: ClassVar[str] = "precision"
    saying: ClassVar[str] = "the bytes of a value and the format of its products"

    name: str
    bytes_of: PrecisionBytes
    compute_dtype: str = "float32"
    casts_parameters: bool = False
    residual: str | None = None
    fp8_width: int | None = None
    gpu_since: tuple[int, int] | None = None
    asked: str = ""
    instead: str = ""

    def refusal(self, device: str) -> str:
        """Return the sentence against a device without its products, described in words."""
        major, minor = self.gpu_since or (0, 0)
        asked = self.asked or f"precision={self.name}"
        return (
            f"{asked} needs a GPU of compute capability {major}.{minor} or later, and {device}. "
            f"Did you mean {self.instead}?"
        )
