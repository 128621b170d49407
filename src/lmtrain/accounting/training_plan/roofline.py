"""How long one matrix product takes at best: its FLOPs at the device's peak, or its bytes at its memory's bandwidth.

The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the slower of the two is the bound.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lmtrain.accounting.machine.hardware import Device, MatmulDtype
from lmtrain.accounting.machine.number_formats import BITS
from lmtrain.accounting.model.flops import matmul_flops
from lmtrain.errors import ConfigurationError

Shape = tuple[int, ...]


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
        return self.num_products * (m * k + k * n + m * n) * BITS[dtype] // 8


def product_times(
    product: MatrixProduct, devices: Sequence[Device], dtypes: Sequence[MatmulDtype]
) -> Iterator[dict[str, Any]]:
    """Yield the product's least seconds on each device, in each format for which it has a peak.

    Computing and moving overlap, and the longer one bounds it; `intensity` are the FLOPs for each byte moved.
    """
    for device in devices:
        for dtype in dtypes:
            if peak := device.peak_flops(dtype):
                num_bytes, bandwidth = product.num_bytes(dtype), device.memory_bytes_per_second
                yield {
                    "device": device.name,
                    "dtype": dtype,
                    "peak_flops": peak,
                    "bytes_per_second": bandwidth,
                    "flops": product.flops,
                    "num_bytes": num_bytes,
                    "seconds": max(product.flops / peak, num_bytes / bandwidth),
                    "is_bound_by_memory": num_bytes / bandwidth > product.flops / peak,
                    "intensity": product.flops / num_bytes,
                }


def product_of(left: Shape, right: Shape) -> MatrixProduct:
    """Return [..., m, k] x [k, n] with leading dimensions as rows, or [..., m, k] x [..., k, n], several products."""
    (m, k), (inner, n) = left[-2:], right[-2:]
    if k != inner or (len(right) > 2 and left[:-2] != right[:-2]):
        raise ConfigurationError(f"{list(left)} x {list(right)}: the second shape must be {k}x{n}, or start alike.")
    if len(right) == 2:
        return MatrixProduct(num_rows=math.prod(left[:-1]), num_inner=k, num_columns=n)
    return MatrixProduct(num_rows=m, num_inner=k, num_columns=n, num_products=math.prod(left[:-2]))
