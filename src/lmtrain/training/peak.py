"""The FLOP/s at a utilization of 1: a table's figure for a known GPU, a measured matrix product for a CPU."""

import time

import torch

from lmtrain.accounting.cluster import MEASURED, Cluster, Peak
from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.machine.number_formats import utilization_format
from lmtrain.accounting.observed.measured import MeasuredDevice, Measurements, until_two_agree
from lmtrain.accounting.quantities import format_count
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.precision.cpu_products import cpu_matmul_precision, multiplying

SIDE = 768  # a product ends within a slice of a shared processor
CPU_DTYPES: dict[MatmulDtype, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MEASURED_SECONDS = 0.2  # every run waits for it, twice or more


def device_peak(
    cluster: Cluster,
    *,
    matmul: MatmulDtype,
    accelerator: str,
    measured: Measurements | None = None,
    cpu_threads: int | None = None,
) -> Peak | None:
    """Return the peak of products in a format on one device (one process, on CPU), or None where it is unknown.

    Products in fp8 count by the peak of bf16.

    `cpu_threads` None is torch's own choice. `measured` is `lmtrain doctor`'s finding: it stands in for a table that
    lacks a GPU, and for measuring a CPU again.
    """
    measured = measured or Measurements()
    uses_gpu = torch.cuda.is_available() and accelerator != "cpu"
    if uses_gpu or cluster.peak_flops is not None or cluster.device is not None:
        matmul = utilization_format(matmul)
        detected = torch.cuda.get_device_name() if uses_gpu else None
        found = measured.find("gpu", name=detected) if detected and cluster.device in (None, detected) else None
        return cluster.peak(matmul, detected_device=detected) or (found and found.peak(matmul))
    if cpu_threads is not None:
        torch.set_num_threads(cpu_threads)  # as the Trainer will
    threads = torch.get_num_threads()
    device = measured.find("cpu", name=cpu_name(), threads=threads)
    known = device and device.peak(matmul)
    if (device and known and is_current(device, matmul)) or matmul not in CPU_DTYPES:
        return known
    on = format_count(threads, "thread")
    return Peak(settled_matmul(matmul), f"{MEASURED} here: {matmul} product of two {SIDE} x {SIDE} matrices on {on}")


def is_current(device: MeasuredDevice, matmul: MatmulDtype) -> bool:
    """Return whether a CPU's peak is of the products that a run has now: fp32's may be of another library."""
    return matmul != "fp32" or device.matmul_precision == cpu_matmul_precision()


def settled_matmul(matmul: MatmulDtype) -> float:
    """Return the best rate of products on the CPU, measured until two agree."""
    rates, _ = until_two_agree(lambda: measure_matmul(CPU_DTYPES[matmul]), lambda rate: {matmul: rate})
    return max(rates)


def measure_matmul(dtype: torch.dtype) -> float:
    """Return the best FLOP/s of a square matrix product over a fraction of a second on this process's CPU threads.

    A product takes the processor's time of the calling thread: the clock's counts other processes too, and made the
    peak of a busy machine a third of an idle one's.
    """
    left, right = torch.randn(2, SIDE, SIDE).to(dtype)
    best = float("inf")
    with multiplying(cpu_matmul_precision()):  # as the Trainer does
        deadline = time.perf_counter() + MEASURED_SECONDS
        while time.perf_counter() < deadline:
            start = time.thread_time()
            torch.mm(left, right)
            best = min(best, time.thread_time() - start)
    return 2 * SIDE**3 / best
