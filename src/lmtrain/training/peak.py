"""The FLOP/s that utilization divides by: a table's figure for a known GPU, a measured matrix product for a CPU."""

import time

import torch

from lmtrain.accounting.cluster import Cluster, Peak
from lmtrain.accounting.hardware import MatmulDtype, find_device
from lmtrain.accounting.measured import Measurements
from lmtrain.precision.cpu_features import cpu_name

SIDE = 1536
MEASURED_SECONDS = 1.5  # long enough to meet a moment when nothing else runs


def device_peak(
    cluster: Cluster,
    *,
    compute_dtype: torch.dtype,
    accelerator: str,
    measured: Measurements | None = None,
    cpu_threads: int | None = None,
) -> Peak | None:
    """Return the peak of one device (one process, on CPU), or None where the device is unknown.

    `cpu_threads` None is torch's own choice. `measured` is what `lmtrain doctor` found: it stands in
    for a table that lacks a GPU, and for measuring a CPU anew.
    """
    measured = measured or Measurements()
    uses_gpu = torch.cuda.is_available() and accelerator != "cpu"
    if uses_gpu or cluster.peak_flops is not None or cluster.device is not None:
        detected = torch.cuda.get_device_name() if uses_gpu else None
        dtype = matmul_dtype(compute_dtype, uses_gpu=uses_gpu)
        found = measured.find("gpu", name=detected) if detected and cluster.device in (None, detected) else None
        return cluster.peak(dtype, detected_device=detected) or (found and found.peak(dtype))
    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)  # as the Trainer will
    threads = torch.get_num_threads()
    device = measured.find("cpu", name=cpu_name(), threads=threads)
    if device and (known := device.peak(matmul_dtype(compute_dtype, uses_gpu=False))):
        return known
    flops = measure_matmul(compute_dtype)
    name = str(compute_dtype).removeprefix("torch.")
    return Peak(flops, f"measured here: {name} product of two {SIDE} x {SIDE} matrices on {threads} threads")


def device_watts(cluster: Cluster, *, accelerator: str) -> float | None:
    """Return the rated power of one device, or None where the device is unknown, as every CPU is."""
    uses_gpu = torch.cuda.is_available() and accelerator != "cpu"
    device = find_device(cluster.device or (torch.cuda.get_device_name() if uses_gpu else ""))
    return None if device is None else device.power_watts


def matmul_dtype(compute_dtype: torch.dtype, *, uses_gpu: bool) -> MatmulDtype:
    """Return the hardware table's word for a compute dtype; fp32 products run as TF32 on a GPU."""
    words: dict[torch.dtype, MatmulDtype] = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    return words.get(compute_dtype, "tf32" if uses_gpu else "fp32")


def measure_matmul(dtype: torch.dtype) -> float:
    """Return the best FLOP/s of a square matrix product over a fraction of a second on this process's CPU threads."""
    left, right = torch.randn(2, SIDE, SIDE).to(dtype)
    best = float("inf")
    deadline = time.perf_counter() + MEASURED_SECONDS
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        torch.mm(left, right)
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best
