"""The load of a node."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lmtrain.callbacks.system_metrics import SystemMetrics


@pytest.mark.slow  # MLflow takes 3 seconds and more to import
def test_names_and_units_are_those_of_mlflow_s_own_monitors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.system_metrics.system_metrics_monitor import CPUMonitor, DiskMonitor, NetworkMonitor

    disk = psutil.disk_usage(str(tmp_path))
    monkeypatch.setattr(psutil, "disk_usage", lambda folder: disk)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    logged, theirs = {}, {}
    run = SimpleNamespace(folder=tmp_path, append=lambda step, metrics: logged.update(metrics))
    trainer = SimpleNamespace(global_step=1, is_global_zero=True, accumulate_grad_batches=1)
    callback = SystemMetrics(every_seconds=1e-9, context=run)
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    for monitor in (CPUMonitor(), DiskMonitor(), NetworkMonitor()):
        monitor.collect_metrics()
        theirs |= monitor.aggregate_metrics()
    own = {name.removeprefix("system/"): value for name, value in logged.items()}
    assert own.keys() == theirs.keys()
    steady = [name for name in own if name.startswith("disk")]
    assert {name: own[name] for name in steady} == pytest.approx({name: theirs[name] for name in steady}, abs=0.06)
    name = "system_memory_usage_megabytes"
    assert own[name] == pytest.approx(theirs[name], rel=0.2)
