"""How long one matrix product takes at best: its FLOPs at the device's peak, or its bytes at its memory's bandwidth.

The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the slower of the two is the bound.
"""

from dataclasses import dataclass

from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.machine.number_formats import FORMATS
from lmtrain.accounting.model.flops import matmul_flops

FORMAT_OF = {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp32": "fp32", "fp8": "e4m3"}


@dataclass(frozen=True, kw_only=True)
class ProductTime:
    """Seconds that computing and moving take at least; both go on at the same time."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """Return the longer of both."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def is_bound_by_memory(self) -> bool:
        """Tell whether the device waits for its memory."""
        return self.memory_seconds > self.compute_seconds


def product_time(
    device: Device, dtype: MatmulDtype, *, num_rows: int, num_inner: int, num_columns: int
) -> ProductTime | None:
    """Return the time of [rows, inner] x [inner, columns], each tensor moved once; None without a peak in `dtype`."""
    peak = device.peak_flops(dtype)
    if peak is None:
        return None
    num_values = num_rows * num_inner + num_inner * num_columns + num_rows * num_columns
    return ProductTime(
        compute_seconds=matmul_flops(num_rows, num_inner, num_columns) / peak,
        memory_seconds=num_values * FORMATS[FORMAT_OF[dtype]].num_bytes / device.memory_bytes_per_second,
    )
