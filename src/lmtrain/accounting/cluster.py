"""The machines of a run: number, device, links and price."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lmtrain.accounting.machine.hardware import Device, MatmulDtype, find_device, require_known
from lmtrain.errors import ConfigurationError

# A config may come from a file of somebody else's: LD_PRELOAD, or a plugin's path, would run code.
OF_COMMUNICATION: Final = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"),
    *("OMPI_", "MPICH_", "IB_", "HSA_", "GPU_", "CUDA_DEVICE_"),
)


TINY: Final = 5e-324  # the least number above 0
ABOVE_0: Final = (TINY, math.inf, "above 0, or null")
RATE: Final = (TINY, 1e15, "above 0 and at most 1e15, or null")
FROM_0: Final = (0, math.inf, "at least 0, or null")
RANGES: Final = {
    "num_nodes": (1, math.inf, "at least 1"),
    "devices_per_node": (1, math.inf, "at least 1"),
    "memory_bytes": ABOVE_0,
    "peak_flops": (TINY, 1e18, "above 0 and at most 1e18, or null"),
    "usd_per_gpu_hour": FROM_0,
    "device_hours_per_failure": ABOVE_0,
    "network_bytes_per_second": RATE,
    "device_network_bytes_per_second": RATE,
    "mfu": (TINY, 1, "above 0 and at most 1; 0.4 is 40%"),
}
MEASURED: Final = "measured"  # begins the source of a peak of no data sheet
ASSUMED_MFU: Final = 0.4  # the reach of well-tuned loops at about a billion parameters


@dataclass(frozen=True)
class Peak:
    """The peak FLOP/s of one device, utilization's divisor, and the source of the figure."""

    flops: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The machines a run uses; `device` None means the device found, `peak_flops` None means the table's.

    `memory_bytes` are those of one device, None: the table's; less for a slice of one.
    `network_bytes_per_second` is a node's rate to other nodes, in one direction, None: that of its devices' own cards,
    `device_network_bytes_per_second` each; None of both where nodes are not joined.
    `mfu` is the share of the peak assumed by plans, by PaLM's count. `device_hours_per_failure` is a device's mean time
    between two failures of a run, for the cadence of checkpoints. `accelerator` is the Trainer's.
    `environment` are variables of a communication library, as NCCL's, for ranks without one of the name in theirs.
    Raises: ConfigurationError for a device outside the table without `peak_flops`, or another variable.
    """

    name: str
    device: str | None = None
    memory_bytes: float | None = None
    num_nodes: int = 1
    devices_per_node: int = 1
    network_bytes_per_second: float | None = None
    device_network_bytes_per_second: float | None = None
    usd_per_gpu_hour: float | None = None
    peak_flops: float | None = None
    mfu: float | None = None
    device_hours_per_failure: float | None = None
    accelerator: str = "auto"
    environment: Mapping[str, str | int] = field(default_factory=dict[str, "str | int"])

    def __post_init__(self) -> None:
        for name, (least, most, rule) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not (least <= value <= most and math.isfinite(value)):
                raise ConfigurationError(f"cluster.{name}={value} must be {rule}.")
        for name, value in self.environment.items():
            if not name.startswith(OF_COMMUNICATION) or "/" in str(value):
                raise ConfigurationError(
                    f"cluster.environment.{name}={value} must be a plain setting of a communication library "
                    f"({', '.join(OF_COMMUNICATION)}); set it in the ranks' own environment."
                )
        if self.device is not None:
            require_known(self.device, key="cluster", has_peak=self.peak_flops is not None)

    @property
    def num_devices(self) -> int:
        """Count the devices of all nodes."""
        return self.num_nodes * self.devices_per_node

    def usd_per_hour(self, num_devices: int) -> float | None:
        """Return the price of devices together, None where it is not known."""
        return None if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour * num_devices

    @property
    def known_device(self) -> Device | None:
        """Return the table's row of the configured device, if it has one."""
        return find_device(self.device) if self.device else None

    @property
    def device_bytes(self) -> int | None:
        """Return the memory of one device, None where it is not known before the run."""
        if self.memory_bytes is not None:
            return int(self.memory_bytes)
        return self.known_device.memory_bytes if self.known_device else None

    @property
    def node_bytes_per_second(self) -> float | None:
        """Return a node's rate to other nodes, None where it is not known: fewer devices bring fewer cards."""
        if self.network_bytes_per_second is not None or self.device_network_bytes_per_second is None:
            return self.network_bytes_per_second
        return self.device_network_bytes_per_second * self.devices_per_node

    def peak(self, dtype: MatmulDtype, *, detected_device: str | None = None) -> Peak | None:
        """Return the peak of one device for matmuls in `dtype`; None for a device outside the table."""
        if self.peak_flops is not None:
            return Peak(self.peak_flops, "cluster.peak_flops")
        device = find_device(self.device or detected_device or "")
        flops = device.peak_flops(dtype) if device else None
        return Peak(flops, f"{device.name} {dtype} dense") if device and flops else None
