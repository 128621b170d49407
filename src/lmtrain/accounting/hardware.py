"""Dense peaks of the devices we know, by exact product name; a name that is not here has no peak, never a guess.

Figures: NVIDIA's data sheets, without 2:4 sparsity, which training does not have ("1979 TFLOP/s" for an H100 in bf16
is the sparse figure).
"""

from dataclasses import dataclass
from typing import Final, Literal

from lmtrain.errors import ConfigurationError, suggest

MatmulDtype = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]


@dataclass(frozen=True)
class Device:
    """One accelerator: dense peak FLOP/s by matmul dtype (None: not offered, or not known), memory and bandwidth."""

    name: str
    half: float
    tf32: float | None
    fp32: float | None
    fp8: float | None
    memory_bytes: int
    bandwidth_bytes_per_second: float | None

    def peak_flops(self, dtype: MatmulDtype) -> float | None:
        """Return dense FLOP/s of matmuls in `dtype`, or None where the table has none."""
        return {"bf16": self.half, "fp16": self.half, "tf32": self.tf32, "fp32": self.fp32, "fp8": self.fp8}[dtype]


def _device(
    name: str,
    half: float,
    tf32: float | None,
    fp32: float | None,
    fp8: float | None,
    memory_gb: int,
    terabytes_per_second: float | None,
) -> Device:
    tera = [None if peak is None else peak * 1e12 for peak in (tf32, fp32, fp8, terabytes_per_second)]
    return Device(name, half * 1e12, tera[0], tera[1], tera[2], memory_gb * 10**9, tera[3])


# Names are those that torch.cuda.get_device_name reports. TFLOP/s: half, tf32, fp32, fp8; then GB and TB/s.
DEVICES: Final[dict[str, Device]] = {
    device.name: device
    for device in (
        _device("NVIDIA H100 80GB HBM3", 989.4, 494.7, 66.9, 1978.9, 80, 3.35),
        _device("NVIDIA H100 PCIe", 756, 378, 51, 1513, 80, 2.0),
        _device("NVIDIA H100 NVL", 835, 417, 60, 1670, 94, 3.9),
        _device("NVIDIA H200", 989.4, 494.7, 66.9, 1978.9, 141, 4.8),
        _device("NVIDIA A100-SXM4-40GB", 312, 156, 19.5, None, 40, 1.6),
        _device("NVIDIA A100-SXM4-80GB", 312, 156, 19.5, None, 80, 2.0),
        _device("NVIDIA B200", 2250, 1125, 75, 4500, 180, 8.0),
        _device("NVIDIA L4", 121, None, None, None, 24, None),
        _device("NVIDIA L40S", 362, None, None, None, 48, None),
        _device("NVIDIA GeForce RTX 4090", 165.2, None, None, None, 24, None),
    )
}


def find_device(name: str) -> Device | None:
    """Return the device of exactly this product name, or None: an L40 is not an L4."""
    return DEVICES.get(name)


@dataclass(frozen=True)
class Peak:
    """The FLOP/s of one device that utilization divides by, and where the figure comes from."""

    flops: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines a run uses; `device` None means whatever device is found, `peak_flops` None means the table's.

    Raises: ConfigurationError for a device that is not in the table and has no `peak_flops`.
    """

    name: str
    device: str | None = None
    num_nodes: int = 1
    devices_per_node: int = 1
    usd_per_gpu_hour: float | None = None
    peak_flops: float | None = None

    def __post_init__(self) -> None:
        for key, value in (("num_nodes", self.num_nodes), ("devices_per_node", self.devices_per_node)):
            if value < 1:
                raise ConfigurationError(f"cluster.{key}={value} is not a number of machines; nearest valid: 1.")
        if self.device is not None and self.peak_flops is None and find_device(self.device) is None:
            raise ConfigurationError(
                f"cluster.device={self.device} is not in the hardware table.{suggest(self.device, DEVICES)} "
                "Set cluster.peak_flops to its dense peak in FLOP/s."
            )
        if self.peak_flops is not None and self.peak_flops <= 0:
            raise ConfigurationError(f"cluster.peak_flops={self.peak_flops} is not above 0; null uses the table.")
        if self.usd_per_gpu_hour is not None and self.usd_per_gpu_hour < 0:
            raise ConfigurationError(f"cluster.usd_per_gpu_hour={self.usd_per_gpu_hour} is below 0; null is no price.")

    def peak(self, dtype: MatmulDtype, *, detected_device: str | None = None) -> Peak | None:
        """Return the peak of one device for matmuls in `dtype`; None for a device that the table does not know."""
        if self.peak_flops is not None:
            return Peak(self.peak_flops, "cluster.peak_flops")
        device = find_device(self.device or detected_device or "")
        flops = device.peak_flops(dtype) if device else None
        return Peak(flops, f"{device.name} {dtype} dense") if device and flops else None
