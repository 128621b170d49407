"""The load of one node by MLflow's names for system metrics: processors, memory, disk, network, GPUs.

A GPU's numbers need NVIDIA's package pynvml and its driver; without them there are none.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from lmtrain.tracking.run_log import RunLog

SYSTEM: Final = "system/"  # a key that begins so is on MLflow's page of system metrics
FOLDER: Final = "system"
MEGABYTE: Final = 1e6


def load_log(folder: Path, node: int) -> RunLog:
    """Open a node's points in a run's folder, system/node<n>.jsonl; a point's step counts them."""
    return RunLog(folder, name=f"{FOLDER}/node{node}.jsonl")


def load_logs(folder: Path) -> Sequence[Path]:
    """Return the nodes' files in a run's folder."""
    return sorted((folder / FOLDER).glob("node*.jsonl"))


class NodeLoad:
    """Read this node's load; `folder` lies on the disk to look at, the network is counted from here on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        psutil.cpu_percent()  # the next answer is the share since this one
        self._received, self._sent = _network()
        self._gpus = _gpus()

    def read(self) -> dict[str, float]:
        """Return the load by name: percent since the last reading, megabytes of 10^6 bytes, watts."""
        memory, disk, (received, sent) = psutil.virtual_memory(), psutil.disk_usage(str(self._folder)), _network()
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_available_megabytes": disk.free / MEGABYTE,
            "network_receive_megabytes": (received - self._received) / MEGABYTE,
            "network_transmit_megabytes": (sent - self._sent) / MEGABYTE,
        }
        for index, gpu in enumerate(self._gpus):
            found |= {f"gpu_{index}_{name}": value for name, value in _read_gpu(gpu).items()}
        return {name: round(value, 3) for name, value in found.items()}


def _network() -> tuple[int, int]:
    """Return the bytes received and sent since the machine's start, 0 without a network."""
    counted = psutil.net_io_counters()
    return (counted.bytes_recv, counted.bytes_sent) if counted else (0, 0)


def _gpus() -> list[Any]:
    """Return NVML's handles of the node's GPUs; none without the package or the driver."""
    with contextlib.suppress(ImportError):
        import pynvml  # pyright: ignore[reportMissingImports]  of the extra nvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return []


def _read_gpu(gpu: Any) -> dict[str, float]:
    """Return a GPU's memory, utilization and power; a slice of one (MIG) has fewer."""
    import pynvml  # pyright: ignore[reportMissingImports]

    found: dict[str, float] = {}
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu)
        found["memory_usage_megabytes"] = memory.used / MEGABYTE
        found["memory_usage_percentage"] = 100 * memory.used / memory.total
        found["utilization_percentage"] = float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
        watts = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000
        found["power_usage_watts"] = watts
        found["power_usage_percentage"] = 100_000 * watts / pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu)
    return found
