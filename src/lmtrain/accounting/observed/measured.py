"""Measurements of machines: peaks of their products, and bandwidth."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

from lmtrain.accounting.cluster import MEASURED, Peak
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.quantities import format_count

TOLERANCE: Final = 0.05  # of a rate, between two results on an idle machine
MOST_TRIES: Final = 5

T = TypeVar("T")


def until_two_agree(measure: Callable[[], T], rates: Callable[[T], Mapping[str, float]]) -> tuple[list[T], float]:
    """Measure at least twice and at most five times; return all results, and the last two's largest difference.

    `rates` of two results are compared by name, and differ by a share.
    """
    results, spread = [measure()], 1.0
    while len(results) < MOST_TRIES and spread > TOLERANCE:
        results.append(measure())
        first, second = map(rates, results[-2:])
        spread = max(abs(first[name] - second[name]) / max(first[name], second[name]) for name in first)
    return results, spread


Kind = Literal["cpu", "gpu"]


@dataclass(frozen=True, kw_only=True)
class MeasuredDevice:
    """One device, a CPU with a number of threads: FLOP/s of products by dtype, and bytes per second of a copy.

    `default_threads` is torch's own choice, kept for plans without torch. `matmul_precision` is torch's word for the
    fp32 products of a CPU.
    """

    kind: Kind
    name: str
    threads: int | None = None
    default_threads: int | None = None
    matmul_flops: Mapping[str, float] = field(default_factory=dict[str, float])
    copy_bytes_per_second: float | None = None
    matmul_precision: str = "highest"

    def at_best(self, other: "MeasuredDevice") -> "MeasuredDevice":
        """Return this device at the better of two measurements: other work only ever slows a machine."""
        flops = {name: max(rate, other.matmul_flops.get(name, 0.0)) for name, rate in self.matmul_flops.items()}
        copies = [each for each in (self.copy_bytes_per_second, other.copy_bytes_per_second) if each is not None]
        return replace(self, matmul_flops=flops, copy_bytes_per_second=max(copies, default=None))

    def peak(self, dtype: MatmulDtype) -> Peak | None:
        """Return the measured peak of products in `dtype`, or None without a measurement."""
        flops = self.matmul_flops.get(dtype)
        threads = "" if self.threads is None else f" on {format_count(self.threads, 'thread')}"
        return Peak(flops, f"{MEASURED} by lmtrain doctor: {self.name} {dtype}{threads}") if flops else None


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """All measured devices of a machine."""

    devices: tuple[MeasuredDevice, ...] = ()

    def find(self, kind: Kind, *, name: str | None = None, threads: int | None = None) -> MeasuredDevice | None:
        """Return the device of this kind and name (None: any, the newest), a CPU with `threads`."""
        for device in reversed(self.devices):
            if device.kind == kind and name in (None, device.name) and (kind == "gpu" or device.threads == threads):
                return device
        return None

    def default_threads(self, name: str) -> int | None:
        """Return torch's own number of threads on a CPU of this name, None if unknown."""
        found = [device.default_threads for device in self.devices if device.name == name and device.default_threads]
        return found[-1] if found else None

    def with_device(self, device: MeasuredDevice) -> "Measurements":
        """Return these with a device, in place of an older measurement of it."""
        others = [old for old in self.devices if _identity(old) != _identity(device)]
        return replace(self, devices=(*others, device))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"devices": [asdict(device) for device in self.devices]}


def measurements_from_json(content: Mapping[str, Any]) -> Measurements:
    """Read the values of `to_json`; those of another version count as not measured."""
    try:
        return Measurements(devices=tuple(MeasuredDevice(**device) for device in content.get("devices", [])))
    except TypeError:
        return Measurements()


def _identity(device: MeasuredDevice) -> tuple[Kind, str, int | None]:
    return device.kind, device.name, device.threads
