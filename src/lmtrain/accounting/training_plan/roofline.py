"""How long one matrix product takes at best: its FLOPs at the device's peak, or its bytes at its memory's bandwidth.

The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the slower of the two is the bound. Its tiles:
NVIDIA's Matrix Multiplication Background, sections 2.3 and 3.
"""

import math
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.machine.number_formats import FORMATS
from lmtrain.accounting.model.flops import matmul_flops

FORMAT_OF: Final = {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp32": "fp32", "fp8": "e4m3"}
TILE: Final = (256, 128)  # of the result, the largest and fastest of cuBLAS; one multiprocessor computes one at a time


@dataclass(frozen=True, kw_only=True)
class MatrixProduct:
    """`num_products` independent products of [rows, inner] x [inner, columns]."""

    num_rows: int
    num_inner: int
    num_columns: int
    num_products: int = 1

    @property
    def flops(self) -> int:
        """Return 2 m k n each: a multiplication and an addition."""
        return self.num_products * matmul_flops(self.num_rows, self.num_inner, self.num_columns)

    def num_bytes(self, dtype: MatmulDtype) -> int:
        """Return the bytes of both operands and the result, all in `dtype`, each moved once."""
        m, k, n = self.num_rows, self.num_inner, self.num_columns
        return self.num_products * (m * k + k * n + m * n) * FORMATS[FORMAT_OF[dtype]].num_bytes

    def intensity(self, dtype: MatmulDtype) -> float:
        """Return the FLOPs for each byte moved."""
        return self.flops / self.num_bytes(dtype)

    def tile_use(self, num_multiprocessors: int) -> float:
        """Return the share of computing that counts, of whole tiles in whole waves over the multiprocessors."""
        slots = min(self._slots(num_multiprocessors, *tile) for tile in (TILE, TILE[::-1]))
        return self.num_products * self.num_rows * self.num_columns / (slots * math.prod(TILE))

    def _slots(self, num_multiprocessors: int, tile_rows: int, tile_columns: int) -> int:
        tiles = self.num_products * -(-self.num_rows // tile_rows) * -(-self.num_columns // tile_columns)
        return -(-tiles // num_multiprocessors) * num_multiprocessors


@dataclass(frozen=True, kw_only=True)
class ProductTime:
    """The least seconds of computing and of moving; both go on at the same time."""

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


def time_of(product: MatrixProduct, dtype: MatmulDtype, *, peak_flops: float, bytes_per_second: float) -> ProductTime:
    """Return the time of a product at a peak in FLOP/s and a memory's bandwidth."""
    return ProductTime(
        compute_seconds=product.flops / peak_flops, memory_seconds=product.num_bytes(dtype) / bytes_per_second
    )


def product_time(
    device: Device, dtype: MatmulDtype, *, num_rows: int, num_inner: int, num_columns: int
) -> ProductTime | None:
    """Return the time of [rows, inner] x [inner, columns], each tensor moved once; None without a peak in `dtype`."""
    peak = device.peak_flops(dtype)
    if peak is None:
        return None
    product = MatrixProduct(num_rows=num_rows, num_inner=num_inner, num_columns=num_columns)
    return time_of(product, dtype, peak_flops=peak, bytes_per_second=device.memory_bytes_per_second)
