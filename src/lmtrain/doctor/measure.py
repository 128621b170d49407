"""Measure a device until two results agree: FLOP/s of square matrix products by dtype, bytes per second of a copy."""

import os
import time
from collections.abc import Callable
from functools import reduce
from typing import Final

import torch

from lmtrain.accounting.machine.hardware import MatmulDtype
from lmtrain.accounting.observed.measured import TOLERANCE, MeasuredDevice, until_two_agree
from lmtrain.doctor.checks import Finding, graded
from lmtrain.precision.cpu_features import cpu_name
from lmtrain.precision.cpu_products import cpu_matmul_precision
from lmtrain.training.peak import measure_matmul

GPU_SIDE: Final = 8192
CPU_COPY_BYTES: Final = 128 * 2**20
GPU_COPY_BYTES: Final = 2**30
COPIES: Final = 5
DTYPES: Final[dict[MatmulDtype, torch.dtype]] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure_until_two_agree(measure: Callable[[], MeasuredDevice]) -> tuple[MeasuredDevice, Finding]:
    """Measure two to five times; return the device at its best rates, and whether they can be relied on."""
    results, spread = until_two_agree(measure, _rates)
    agree = spread <= TOLERANCE
    words = f"{len(results)} tries, the last two {'within' if agree else 'differ by'} {spread:.1%}"
    fix = f"end other work and measure again: on an idle machine two results are within {TOLERANCE:.0%}"
    found = graded("measurement", words if agree else f"the machine is busy: {words}", fix=fix, is_worse=not agree)
    return reduce(MeasuredDevice.at_best, results), found


def _rates(device: MeasuredDevice) -> dict[str, float]:
    copied = device.copy_bytes_per_second
    return {**device.matmul_flops, **({} if copied is None else {"copy": copied})}


def measure_cpu(*, threads: int | None = None, num_ranks: int = 1, copy_bytes: int = CPU_COPY_BYTES) -> MeasuredDevice:
    """Measure this CPU with `threads` threads; None is a rank's share of torch's default (or OMP_NUM_THREADS)."""
    default = torch.get_num_threads()
    is_default = "OMP_NUM_THREADS" not in os.environ
    torch.set_num_threads(threads or (max(1, default // num_ranks) if is_default else default))
    try:
        return MeasuredDevice(
            kind="cpu",
            name=cpu_name(),
            threads=torch.get_num_threads(),
            default_threads=default if is_default else None,
            matmul_flops={word: measure_matmul(dtype) for word, dtype in DTYPES.items()},
            copy_bytes_per_second=_copy_rate(torch.empty(copy_bytes, dtype=torch.uint8), lambda: None),
            matmul_precision=cpu_matmul_precision(),
        )
    finally:
        torch.set_num_threads(default)


def measure_gpu(*, side: int = GPU_SIDE, copy_bytes: int = GPU_COPY_BYTES) -> MeasuredDevice:
    """Measure the first GPU; products of fp32 numbers both exactly and as TF32."""
    dtypes: dict[MatmulDtype, torch.dtype] = {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }
    return MeasuredDevice(
        kind="gpu",
        name=torch.cuda.get_device_name(),
        matmul_flops={word: _gpu_matmul(dtype, side, is_tf32=word == "tf32") for word, dtype in dtypes.items()},
        copy_bytes_per_second=_copy_rate(
            torch.empty(copy_bytes, dtype=torch.uint8, device="cuda"), torch.cuda.synchronize
        ),
    )


def _gpu_matmul(dtype: torch.dtype, side: int, *, is_tf32: bool) -> float:
    torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
    left, right = torch.randn(2, side, side, device="cuda").to(dtype)
    return 2 * side**3 / _least_seconds(lambda: torch.mm(left, right), torch.cuda.synchronize, rounds=10)


def _copy_rate(source: torch.Tensor, wait: Callable[[], None]) -> float:
    """Return bytes per second read and written by the fastest of a few copies."""
    target = torch.zeros_like(source)
    return 2 * source.numel() / _least_seconds(lambda: target.copy_(source), wait, rounds=COPIES)


def _least_seconds(work: Callable[[], object], wait: Callable[[], None], *, rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - start)
    return best
