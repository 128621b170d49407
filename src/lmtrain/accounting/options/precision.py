"""A precision's facts: bytes of a value by role, formats, and whether its steps can be recorded."""

from dataclasses import dataclass
from typing import ClassVar, Final

from lmtrain.accounting.machine.number_formats import PrecisionBytes

UNTRIED: Final = "has not been tried in a recorded step"


@dataclass(frozen=True, kw_only=True)
class PrecisionFacts:
    """A precision's formats; `name` is its word, or the word of its choice.

    `compute_dtype` is torch's word for activations next to the products. `casts_parameters` computes with the weights
    themselves, rounded, without a kept copy. `residual` rounds the residual stream, None leaves it as it is.
    `unrecordable` is the reason against a CUDA graph of its steps, None where recording is known to be right.
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
    unrecordable: str | None = UNTRIED
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
