"""`lmtrain doctor`'s measurements for a config: its device's peak and the time of its steps. Loads no torch."""

import hashlib
import json
import os
from pathlib import Path

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.observed.measured import Calibration, Kind, MeasuredDevice, Measurements
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
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


def deciding(config: RunConfig) -> tuple[Node, ...]:
    """Return the options that decide a step's time, next to the device and the batch."""
    model = (config.model, config.attention, config.loss, config.packing, config.adapter, config.objective)
    of_step = (config.optimizer, config.spikes, config.weight_average, config.compile)
    return (*model, *of_step, config.precision, config.strategy, config.recompute)


def switches(config: RunConfig) -> dict[str, bool]:
    """Return the settings that decide it and belong to no option."""
    return {
        "clips": config.gradient_clip_norm is not None,
        "deterministic": config.deterministic,
        "detect_anomaly": config.trainer.detect_anomaly,
        "optimizer_cpu_offload": config.optimizer_cpu_offload,
    }


def calibration_of(config: RunConfig, batch: BatchPlan) -> Calibration | None:
    """Return the measured step of this very config; None for another cluster than this machine."""
    measured = measurements_of(config)
    if config.cluster.device is not None or not measured.calibrations:
        return None
    return measured.calibrations.get(calibration_key(config, batch, measured))


def calibration_key(config: RunConfig, batch: BatchPlan, measured: Measurements) -> str:
    """Return a hash of everything that decides the speed: the config's choices, the batch, the device."""
    device = measured.find("gpu") if kind_here(config, measured) == "gpu" else None
    has_threads = batch.num_ranks == 1 and device is None
    parts = {
        "config": {node.key: node.canonical() for node in deciding(config)},
        "switches": switches(config),
        "batch": [
            batch.context_tokens,
            batch.sequences_per_micro_step,
            batch.accumulation_micro_steps,
            batch.num_ranks,
        ],
        "device": device.name if device else cpu_name(),
        "threads": threads_here(config, measured) if has_threads else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def peak_here(config: RunConfig, cluster: Cluster, matmul: MatmulDtype) -> Peak | None:
    """Return the peak of this machine's device in a format, for a cluster without a named device."""
    if cluster.device is not None or cluster.peak_flops is not None:
        return None
    device = _device_here(config)
    if device is None or device.kind == "cpu":
        return device.peak(matmul) if device else None
    known = utilization_format(matmul)
    return cluster.peak(known, detected_device=device.name) or device.peak(known)


def _device_here(config: RunConfig) -> MeasuredDevice | None:
    measured = measurements_of(config)
    if kind_here(config, measured) == "gpu":
        return measured.find("gpu")
    return measured.find("cpu", name=cpu_name(), threads=threads_here(config, measured))
