import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lmtrain.tracking.node_load import NodeLoad


def nvml() -> SimpleNamespace:
    """Return NVIDIA's library for one GPU."""

    return SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda gpu: SimpleNamespace(used=20e9, total=80e9),
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=97),
        nvmlDeviceGetPowerUsage=lambda gpu: 350_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda gpu: 700_000,
    )


@pytest.mark.slow  # MLflow takes 3 seconds and more to import
def test_names_and_units_are_those_of_mlflow_s_own_monitors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    from mlflow.system_metrics.metrics import gpu_monitor
    from mlflow.system_metrics.system_metrics_monitor import CPUMonitor, DiskMonitor, GPUMonitor, NetworkMonitor

    monkeypatch.setattr(gpu_monitor, "pynvml", sys.modules["pynvml"], raising=False)
    disk = psutil.disk_usage(str(tmp_path))
    monkeypatch.setattr(psutil, "disk_usage", lambda folder: disk)
    own, theirs = NodeLoad(tmp_path).read(), {}
    for monitor in (CPUMonitor(), DiskMonitor(), NetworkMonitor(), GPUMonitor()):
        monitor.collect_metrics()
        theirs |= monitor.aggregate_metrics()
    assert own.keys() == theirs.keys()
    steady = [name for name in own if name.startswith(("disk", "gpu"))]
    assert {name: own[name] for name in steady} == pytest.approx({name: theirs[name] for name in steady}, abs=0.06)
    name = "system_memory_usage_megabytes"
    assert own[name] == pytest.approx(theirs[name], rel=0.2)
