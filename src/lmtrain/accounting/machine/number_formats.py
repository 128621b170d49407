"""Number formats: their range, and the bytes of a value by role.

Ranges: IEEE 754 for fp32 and fp16, bfloat16, and the OCP 8-bit formats e4m3 and e5m2 (arXiv 2209.05433).
"""

from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.machine.hardware import MatmulDtype


@dataclass(frozen=True, kw_only=True)
class NumberFormat:
    """A floating-point format: bits of exponent and fraction, and its range."""

    name: str
    num_bytes: int
    exponent_bits: int
    fraction_bits: int
    largest: float
    smallest_normal: float

    @property
    def epsilon(self) -> float:
        """Return the step from 1 to the next larger number."""
        return 2.0**-self.fraction_bits


FORMATS: Final[dict[str, NumberFormat]] = {
    row[0]: NumberFormat(
        name=row[0],
        num_bytes=row[1],
        exponent_bits=row[2],
        fraction_bits=row[3],
        largest=row[4],
        smallest_normal=row[5],
    )
    for row in (
        ("fp32", 4, 8, 23, (2 - 2.0**-23) * 2.0**127, 2.0**-126),
        ("tf32", 4, 8, 10, (2 - 2.0**-10) * 2.0**127, 2.0**-126),
        ("bf16", 2, 8, 7, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
        ("fp16", 2, 5, 10, 65504.0, 2.0**-14),
        ("e4m3", 1, 4, 3, 448.0, 2.0**-6),
        ("e5m2", 1, 5, 2, 57344.0, 2.0**-14),
    )
}


def utilization_format(matmul: MatmulDtype) -> MatmulDtype:
    """Return the format of the peak in utilization's denominator: for fp8, of some products only, it is bf16."""
    return "bf16" if matmul == "fp8" else matmul


@dataclass(frozen=True, kw_only=True)
class PrecisionBytes:
    """Bytes of one value by role, and the format of the matrix products.

    `weights` are updated by the optimizer; `compute_copy` is of weights kept beside them for the products, where no
    sharding casts them as it gathers them.
    """

    weights: int
    compute_copy: int
    gradients: int
    state: int
    activations: int
    matmul: MatmulDtype
