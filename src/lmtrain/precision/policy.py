"""Which number format the matrix products run in; weights, gradients and optimizer state stay fp32.

`auto` takes bf16 where the device has bf16 matrix hardware: CUDA compute capability 8.0 and later, and CPUs with
avx512_bf16 or amx_bf16 (there 2 to 5 times the fp32 rate on the default model's shapes).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from lmtrain.precision.cpu_features import bf16_flags


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A compute format with the Trainer's word for it, and why it was chosen."""

    name: Literal["fp32", "bf16_mixed"]
    reason: str

    @property
    def trainer_word(self) -> str:
        """Return Lightning's name of this format."""
        return {"fp32": "32-true", "bf16_mixed": "bf16-mixed"}[self.name]

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the dtype of the matrix products."""
        return {"fp32": torch.float32, "bf16_mixed": torch.bfloat16}[self.name]


def fp32() -> Precision:
    """Compute in fp32 throughout."""
    return Precision(name="fp32", reason="asked for")


def bf16_mixed() -> Precision:
    """Compute matrix products in bf16 under autocast, with fp32 master weights."""
    return Precision(name="bf16_mixed", reason="asked for")


def auto() -> Precision:
    """Choose bf16_mixed where this machine has bf16 matrix hardware, else fp32."""
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return _choose(fast=major >= 8, device=f"compute capability {major}.{minor}")
    flags = bf16_flags()
    return _choose(fast=bool(flags), device=" and ".join(sorted(flags)) or "a CPU without avx512_bf16 or amx_bf16")


def _choose(*, fast: bool, device: str) -> Precision:
    return Precision(name="bf16_mixed" if fast else "fp32", reason=f"auto: {device}")
