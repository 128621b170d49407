"""The processors, memory, disk, network and GPUs of the first node over a run, by MLflow's names for system metrics.

A GPU's numbers need NVIDIA's package pynvml and its driver; without them there are none.
"""

import contextlib
import time
from typing import Final

import lightning.pytorch as pl
import psutil
import torch
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.training.context import RunCallback, RunContext

SYSTEM: Final = "system/"  # a metric that begins so is on MLflow's page of system metrics
MEGABYTE: Final = 1e6


class SystemMetrics(RunCallback):
    """Log the load of the first rank's node at the end of a step, every `every_seconds`: `system/...`."""

    def __init__(self, *, every_seconds: float = 10.0, context: RunContext | None = None) -> None:
        super().__init__(context)
        require_number("callbacks.system_metrics.every_seconds", every_seconds, above=0, usual="10")
        self._every_seconds = every_seconds

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        psutil.cpu_percent()  # the next answer is the share since this one
        self._read_at, self._network = time.monotonic(), _network()

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.monotonic()
        if trainer.is_global_zero and now - self._read_at >= self._every_seconds:
            self._read_at = now
            with contextlib.suppress(OSError, psutil.Error):  # training goes on without
                load = {f"{SYSTEM}{name}": round(value, 3) for name, value in self._load().items()}
                self.run.append(trainer.global_step, load)

    def _load(self) -> dict[str, float]:
        """Return the load by name: percent since the last reading, megabytes of 10^6 bytes, watts."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self.run.folder.parent))
        received, sent = (now - before for now, before in zip(_network(), self._network, strict=True))
        found = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / MEGABYTE,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / MEGABYTE,
            "disk_available_megabytes": disk.free / MEGABYTE,
            "network_receive_megabytes": received / MEGABYTE,
            "network_transmit_megabytes": sent / MEGABYTE,
        }
        for index in range(torch.cuda.device_count()):
            found |= {f"gpu_{index}_{name}": value for name, value in _load_of_gpu(index).items()}
        return found


def _network() -> tuple[int, int]:
    """Return the bytes received and sent since the machine's start, 0 without a network."""
    counted = psutil.net_io_counters()
    return (counted.bytes_recv, counted.bytes_sent) if counted else (0, 0)


def _load_of_gpu(index: int) -> dict[str, float]:
    """Return a GPU's memory, utilization and power; none without the package or the driver."""
    with contextlib.suppress(Exception):  # a slice of one (MIG) has no utilization
        used, total = torch.cuda.device_memory_used(index), torch.cuda.get_device_properties(index).total_memory
        return {
            "memory_usage_megabytes": used / MEGABYTE,
            "memory_usage_percentage": 100 * used / total,
            "utilization_percentage": float(torch.cuda.utilization(index)),
            "power_usage_watts": torch.cuda.power_draw(index) / 1000,
        }
    return {}


SYSTEM_METRICS_FACTS: Final = CallbackFacts(acts_between_steps=True)
