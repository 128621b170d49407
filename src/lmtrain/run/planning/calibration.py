"""`lmtrain doctor`'s measurements for a config: its device's peak and its steps' time."""

import hashlib
import json
import os

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.cluster import Peak
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.observed.measured import Calibration, Measurements
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.run.planning.measured_here import kind_here, measurements_of
from lmtrain.run.planning.setting import PlannedSetting
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node


def deciding(config: RunConfig) -> tuple[Node, ...]:
    """Return the parts behind a step's time, beside the device and the division of the step."""
    model = (config.model, config.attention, config.loss, config.packing, config.adapter, config.objective)
    of_step = (config.optimizer, config.spikes, config.weight_average, config.compile)
    return (*model, *of_step, config.precision, config.strategy, config.recompute)


def switches(config: RunConfig) -> dict[str, bool]:
    """Return the settings behind it that belong to no part."""
    return {
        "clips": config.gradient_clip_norm is not None,
        "deterministic": config.deterministic,
        "detect_anomaly": config.trainer.detect_anomaly,
        "optimizer_cpu_offload": config.optimizer_cpu_offload,
    }


def calibration_of(config: RunConfig, batch: BatchPlan) -> Calibration | None:
    """Return how long a step of this very config took here; None for another cluster than this machine."""
    if config.cluster.device is not None:
        return None
    measured = measurements_of(config)
    return measured.calibrations.get(calibration_key(config, batch, measured))


def calibration_key(config: RunConfig, batch: BatchPlan, measured: Measurements) -> str:
    """Return a hash of all causes of the speed: the config's choices, the batch, the device."""
    kind = kind_here(config, measured)
    device = measured.find("gpu") if kind == "gpu" else None
    parts = {
        "config": {node.key: node.canonical() for node in deciding(config)},
        "switches": switches(config),
        "batch": [
            batch.context_tokens,
            batch.micro_batch_sequences,
            batch.accumulation_micro_steps,
            batch.num_ranks,
        ],
        "device": device.name if device else cpu_name(),
        "threads": None if device or batch.num_ranks > 1 else threads_here(config, measured),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def single_device_key(config: RunConfig, batch: BatchPlan, measured: Measurements) -> str:
    """Return a hash of all causes of the speed of one device by itself, with a rank's micro-batches and threads."""
    kind = kind_here(config, measured)
    device = measured.find("gpu") if kind == "gpu" else None
    parts = {
        "config": {node.key: node.canonical() for node in deciding(config) if node is not config.strategy},
        "switches": switches(config),
        "batch": [batch.context_tokens, batch.micro_batch_sequences, batch.accumulation_micro_steps],
        "device": device.name if device else cpu_name(),
        "threads": None if device else threads_here(config, measured),
    }
    return "alone-" + hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def single_device_speed(config: RunConfig, batch: BatchPlan) -> float | None:
    """Return the tokens per second of one device by itself, as `doctor --calibrate` found; None for a single rank."""
    if batch.num_ranks == 1:
        return None
    measured = measurements_of(config)
    found = measured.calibrations.get(single_device_key(config, batch, measured))
    return batch.sequences_per_rank * batch.context_tokens / found.step_seconds if found else None


def peak_here(config: RunConfig, setting: PlannedSetting) -> Peak | None:
    """Return the peak measured on this machine, for a cluster without a named device; loads no torch."""
    if setting.cluster.device is not None or setting.cluster.peak_flops is not None:
        return None
    measured = measurements_of(config)
    if kind_here(config, measured) == "cpu":
        device = measured.find("cpu", name=cpu_name(), threads=threads_here(config, measured))
        return device.peak(setting.bytes_of.matmul) if device else None
    device = measured.find("gpu")
    assert device is not None
    matmul = utilization_format(setting.bytes_of.matmul)
    return setting.cluster.peak(matmul, detected_device=device.name) or device.peak(matmul)


def measured_flops(config: RunConfig, matmul: MatmulDtype) -> float | None:
    """Return the doctor's measured FLOP/s of products on this machine's device, None without a measurement."""
    found = measured_peak(config, matmul)
    return found.flops if found else None


def measured_peak(config: RunConfig, matmul: MatmulDtype) -> Peak | None:
    """Return the doctor's measured rate of products on this machine's device, None without a measurement."""
    measured = measurements_of(config)
    if kind_here(config, measured) == "cpu":
        device = measured.find("cpu", name=cpu_name(), threads=threads_here(config, measured))
    else:
        device = measured.find("gpu")
    return device.peak(matmul) if device else None


def threads_here(config: RunConfig, measured: Measurements) -> int | None:
    """Return the threads of one process of a run; None where only torch would know."""
    words = os.environ.get("OMP_NUM_THREADS", "")
    if config.trainer.cpu_threads is not None:
        return config.trainer.cpu_threads
    if words.isdigit():
        return int(words)
    default = measured.default_threads(cpu_name())
    return None if default is None else max(1, default // config.trainer.devices)
