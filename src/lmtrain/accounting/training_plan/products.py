"""One matrix product on several devices and in several formats: its FLOPs, its bytes and its shortest time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from lmtrain.accounting.machine.hardware import MATMUL_DTYPES, Device, MatmulDtype
from lmtrain.accounting.observed.measured import MeasuredDevice
from lmtrain.accounting.quantities import format_count
from lmtrain.accounting.training_plan.roofline import MatrixProduct, ProductTime, time_of
from lmtrain.errors import ConfigurationError

Shape = tuple[int, ...]


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
        """Return the FLOPs a byte at equal times of computing and moving."""
        return self.peak_flops / self.bytes_per_second

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers."""
        return asdict(self) | {
            "seconds": self.time.seconds,
            "is_bound_by_memory": self.time.is_bound_by_memory,
            "balance": self.balance,
        }


def of_table(device: Device) -> ProductDevice:
    """Return a device of the hardware table."""
    peaks = {dtype: device.peak_flops(dtype) for dtype in MATMUL_DTYPES}
    return ProductDevice(
        name=device.name,
        peaks={dtype: peak for dtype, peak in peaks.items() if peak},
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


def product_of(left: Shape, right: Shape) -> MatrixProduct:
    """Return [..., m, k] x [k, n], the leading dimensions being rows, or [..., m, k] x [..., k, n], several products.

    Raises: ConfigurationError for inner dimensions in conflict.
    """
    (m, k), (inner, n) = left[-2:], right[-2:]
    words = f"{list(left)} x {list(right)}"
    if k != inner:
        turned = "x".join(map(str, (*right[:-2], n, inner)))
        near = f"; nearest valid: the second transposed, {turned}" if n == k else f"; nearest valid: {k}x{n}"
        raise ConfigurationError(f"{words}: the inner dimensions, {k} and {inner}, differ{near}.")
    if len(right) == 2:
        return MatrixProduct(num_rows=prod(left[:-1]), num_inner=k, num_columns=n)
    if left[:-2] != right[:-2]:
        raise ConfigurationError(f"{words}: the leading dimensions differ; nearest valid: {k}x{n} for the second.")
    return MatrixProduct(num_rows=m, num_inner=k, num_columns=n, num_products=prod(left[:-2]))


def product_rows(
    product: MatrixProduct, devices: Iterable[ProductDevice], dtypes: Sequence[MatmulDtype]
) -> Iterator[ProductRow]:
    """Yield the product on each device, in each of its formats."""
    for device in devices:
        for dtype in dtypes:
            if peak := device.peaks.get(dtype):
                yield _row(product, device, dtype, peak)


def _row(product: MatrixProduct, device: ProductDevice, dtype: MatmulDtype, peak: float) -> ProductRow:
    # Tiles of that size are of the tensor cores, and those have no fp32.
    units = None if dtype == "fp32" else device.num_multiprocessors
    return ProductRow(
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
