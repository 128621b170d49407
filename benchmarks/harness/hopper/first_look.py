"""The first minutes on a device: versions, the tests marked `gpu`, and the names of the kernels that are chosen."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness.hopper import user_runs
from benchmarks.harness.hopper.rows import Bench, Row
from benchmarks.peers.hopper.profiles import is_counted

PACKAGES: Final = ("torch", "triton", "torchao", "lightning", "flash-attn", "flash-attn-4", "liger-kernel", "mlflow")
GPU_TESTS: Final = re.compile(r"^@pytest\.mark\.gpu$", re.MULTILINE)


def versions(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Tell what the device and the packages are."""
    del scratch
    if bench.wants("versions", "", what="packages"):
        yield {"what": "packages", "python": sys.version.split()[0]} | {name: _version(name) for name in PACKAGES}
    if bench.wants("versions", "", what="device"):
        yield bench.measured({"what": "device"}, lambda: _device(bench))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _device(bench: Bench) -> Row:
    if bench.device.type == "cpu":
        return {"name": bench.name, "threads": torch.get_num_threads()}
    told = torch.cuda.get_device_properties(bench.device)
    return {
        "name": told.name,
        "capability": f"{told.major}.{told.minor}",
        "memory_bytes": told.total_memory,
        "free_bytes": torch.cuda.mem_get_info()[0],
        "multiprocessors": told.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def gpu_tests(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Run the tests marked `gpu`; the last line of pytest tells how many passed."""
    del scratch
    if bench.is_toy:
        yield {"what": "gpu tests", "not_measured": "they run on a GPU"}
    elif bench.wants("gpu_tests", "", what="gpu tests"):
        yield bench.measured({"what": "gpu tests"}, _run_tests)


def _run_tests() -> Row:
    root = user_runs.ROOT
    paths = sorted(str(path) for path in root.glob("tests/**/test_*.py") if GPU_TESTS.search(path.read_text()))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=user_runs.environment(), cwd=root)
    return {"exit_code": found.returncode, "said": (found.stdout.strip().splitlines() or ["nothing"])[-1][:200]}


def kernels(bench: Bench, scratch: Path) -> Iterator[Row]:
    """Name the kernels of a product, of attention at both head widths, and of a fused AdamW step."""
    del scratch
    for name, make in CALLS.items():
        if bench.wants("kernels", name, what=name):
            yield bench.measured({"what": name}, lambda: {"kernels": _names(make(bench), bench)})  # noqa: B023


def _names(call: Callable[[], Any], bench: Bench) -> str:
    on_gpu = bench.device.type == "cuda"
    call()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as prof:
        call()
        if on_gpu:
            torch.cuda.synchronize()
    names = [event.key[:100] for event in prof.key_averages() if is_counted(event, on_gpu=on_gpu)]
    return "; ".join(names[:6])


def _product(bench: Bench) -> Callable[[], Any]:
    side = 64 if bench.is_toy else 4096
    left, right = (torch.randn(side, side, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
    return lambda: left @ right


def _attention(bench: Bench, head_width: int) -> Callable[[], Any]:
    size = (1, 2, 32, head_width) if bench.is_toy else (4, 16, 4096, head_width)
    q, k, v = (torch.randn(size, device=bench.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def call() -> Any:
        return torch.autograd.grad(scaled_dot_product_attention(q, k, v, is_causal=True).sum(), (q, k, v))

    return call


def _adamw(bench: Bench) -> Callable[[], Any]:
    weight = torch.nn.Parameter(torch.randn(1024, 1024, device=bench.device))
    weight.grad = torch.randn_like(weight)
    return torch.optim.AdamW([weight], fused=True).step


CALLS: Final[dict[str, Callable[[Bench], Callable[[], Any]]]] = {
    "product": _product,
    "attention, head width 64": lambda bench: _attention(bench, 64),
    "attention, head width 128": lambda bench: _attention(bench, 128),
    "fused AdamW": _adamw,
}
PARTS: Final = {"versions": versions, "gpu_tests": gpu_tests, "kernels": kernels}
