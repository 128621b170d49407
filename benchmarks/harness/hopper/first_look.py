"""The first minutes on a device: versions and the tests marked `gpu`."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import torch

from benchmarks.harness.hopper import user_runs
from benchmarks.harness.hopper.rows import Bench, Row

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


PARTS: Final = {"versions": versions, "gpu_tests": gpu_tests}
