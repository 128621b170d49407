"""`lmtrain doctor`'s measurements for a config: the peak of its device. Loads no torch."""

import os
from pathlib import Path

from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.observed.measured import Kind, Measurements
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.machine import read_measurements


def measurements_of(config: RunConfig) -> Measurements:
    """Return this machine's earlier measurements."""
    return read_measurements(Path(config.run.cache))


def kind_here(config: RunConfig, measured: Measurements) -> Kind:
    """Return this machine's kind of training device, as far as the doctor has seen it."""
    return "gpu" if measured.find("gpu") and config.trainer.accelerator != "cpu" else "cpu"


def threads_here(config: RunConfig, measured: Measurements) -> int | None:
    """Return the threads of one process of a run; None where only torch would know."""
    typed = os.environ.get("OMP_NUM_THREADS", "")
    if config.trainer.cpu_threads is not None:
        return config.trainer.cpu_threads
    if typed.isdigit():
        return int(typed)
    default = measured.default_threads(cpu_name())
    return None if default is None else max(1, default // config.trainer.devices)


def peak_here(config: RunConfig, cluster: Cluster, matmul: MatmulDtype) -> Peak | None:
    """Return the peak of this machine's device in a format, for a cluster without a named device."""
    if cluster.device is not None or cluster.peak_flops is not None:
        return None
    measured = measurements_of(config)
    cpu = kind_here(config, measured) == "cpu"
    threads = threads_here(config, measured) if cpu else None
    device = measured.find("cpu", name=cpu_name(), threads=threads) if cpu else measured.find("gpu")
    if device is None or device.kind == "cpu":
        return device.peak(matmul) if device else None
    known = utilization_format(matmul)
    return cluster.peak(known, detected_device=device.name) or device.peak(known)
