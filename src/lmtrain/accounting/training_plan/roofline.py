"""How long one matrix product takes at best: its FLOPs at the device's peak, or its bytes at its memory's bandwidth.

The roofline of Williams, Waterman and Patterson (CACM 52(4), 2009): the slower of the two is the bound. Its tiles:
NVIDIA's Matrix Multiplication Background, sections 2.3 and 3.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from lmtrain.accounting.machine.hardware import MATMUL_DTYPES, Device, MatmulDtype
from lmtrain.accounting.machine.number_formats import FORMATS
from lmtrain.accounting.model.flops import matmul_flops
from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.quantities import format_count
from lmtrain.errors import ConfigurationError

Shape = tuple[int, ...]
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
    """The least seconds of computing and of moving, which overlap."""

    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """Return the longer of both."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def is_bound_by_memory(self) -> bool:
        """Return whether the device waits for its memory."""
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


def product_of(left: Shape, right: Shape) -> MatrixProduct:
    """Return [..., m, k] x [k, n] with leading dimensions as rows, or [..., m, k] x [..., k, n], several products.

    Raises: ConfigurationError for dimensions that do not agree.
    """
    (m, k), (inner, n) = left[-2:], right[-2:]
    if k != inner or (len(right) > 2 and left[:-2] != right[:-2]):
        raise ConfigurationError(
            f"{list(left)} x {list(right)}: the second shape must be {k}x{n}, or start like the first."
        )
    if len(right) == 2:
        return MatrixProduct(num_rows=math.prod(left[:-1]), num_inner=k, num_columns=n)
    return MatrixProduct(num_rows=m, num_inner=k, num_columns=n, num_products=math.prod(left[:-2]))


@dataclass(frozen=True, kw_only=True)
class ProductDevice:
    """A device's facts for a product: FLOP/s by format, its memory, its multiprocessors (None: not known)."""

    name: str
    peaks: Mapping[str, float]
    bytes_per_second: float
    num_multiprocessors: int | None = None
    is_measured: bool = False


@dataclass(frozen=True, kw_only=True)
class ProductRow:
    """A product on one device in one format; `tile_use` None where its tiles are not known."""

    device: str
    dtype: MatmulDtype
    is_measured: bool
    peak_flops: float
    bytes_per_second: float
    num_bytes: int
    intensity: float
    time: ProductTime
    tile_use: float | None

    @property
    def balance(self) -> float:
        """Return the FLOPs per byte at equal times of computing and moving."""
        return self.peak_flops / self.bytes_per_second

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        own = {"seconds": self.time.seconds, "is_bound_by_memory": self.time.is_bound_by_memory}
        return asdict(self) | own | {"balance": self.balance}


def of_table(device: Device) -> ProductDevice:
    """Return a device of the hardware table."""
    return ProductDevice(
        name=device.name,
        peaks={dtype: peak for dtype in MATMUL_DTYPES if (peak := device.peak_flops(dtype))},
        bytes_per_second=device.memory_bytes_per_second,
        num_multiprocessors=device.num_multiprocessors,
    )


def as_measured(device: MeasuredDevice) -> ProductDevice | None:
    """Return a device by the doctor's measurements, None where it measured no copy."""
    if not device.copy_bytes_per_second:
        return None
    name = device.name if device.threads is None else f"this CPU, {format_count(device.threads, 'thread')}"
    return ProductDevice(
        name=name, peaks=device.matmul_flops, bytes_per_second=device.copy_bytes_per_second, is_measured=True
    )


def product_rows(
    product: MatrixProduct, devices: Iterable[ProductDevice], dtypes: Sequence[MatmulDtype]
) -> Iterator[ProductRow]:
    """Yield the product on each device, in each of its formats."""
    for device in devices:
        for dtype in dtypes:
            if not (peak := device.peaks.get(dtype)):
                continue
            units = None if dtype == "fp32" else device.num_multiprocessors  # tensor cores' tiles: none in fp32
            yield ProductRow(
                device=device.name,
                dtype=dtype,
                is_measured=device.is_measured,
                peak_flops=peak,
                bytes_per_second=device.bytes_per_second,
                num_bytes=product.num_bytes(dtype),
                intensity=product.intensity(dtype),
                time=time_of(product, dtype, peak_flops=peak, bytes_per_second=device.bytes_per_second),
                tile_use=product.tile_use(units) if units else None,
            )
