"""Checks of a machine before a long run: each finding is good, worth knowing, or prevents the run, with its fix."""

import os
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch

from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.precision.cpu_features import bf16_flags

INFINIBAND: Final = Path("/sys/class/infiniband")
BF16_CAPABILITY: Final = (8, 0)
FP8_CAPABILITY: Final = (8, 9)
SMI_SECONDS: Final = 20
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # the system's own folder, only inspected
NEEDED_SHARED_BYTES: Final = 64 * 2**20  # of each data worker and rank: batches and NCCL's buffers
NEEDED_FILES: Final = 4096
PROBE_BYTES: Final = 32 * 2**20
SLOW_BYTES_PER_SECOND: Final = 50e6
SLOW_WRITE_SECONDS: Final = 120


State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A line of the doctor; `fix` is empty for a good one."""

    name: str
    state: State
    found: str
    fix: str = ""


def graded(name: str, found: str, *, fix: str, is_bad: bool = False, is_worse: bool = False) -> Finding:
    """Return a finding: bad, worth a warning, or good, which needs no fix."""
    state: State = "bad" if is_bad else "warn" if is_worse else "ok"
    return Finding(name=name, state=state, found=found, fix="" if state == "ok" else fix)


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as torch sees it."""

    name: str
    capability: tuple[int, int]


def gpus() -> list[Gpu]:
    """Return the CUDA devices of this process, none on a machine without a GPU."""
    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(each.name, (each.major, each.minor)) for each in properties]


def nvidia_smi(*words: str) -> str | None:
    """Return nvidia-smi's output, or None if it is missing or does not answer."""
    try:
        ended = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def driver(found: list[Gpu], smi: str | None) -> Finding:
    """Report the devices and their driver; `smi` is the driver's version as nvidia-smi prints it."""
    version = (smi or "").strip().partition("\n")[0]
    if found:
        names = ", ".join(sorted({gpu.name for gpu in found}))
        text = f"{len(found)} x {names}, driver {version or 'unknown'}, CUDA {torch.version.cuda}"
        return Finding(name="devices", state="ok", found=text)
    return graded(
        "devices",
        f"driver {version}, but torch sees no GPU" if version else "CPU only: there is no NVIDIA driver",
        is_bad=bool(version),
        fix="install a torch built for CUDA that fits the driver, and check CUDA_VISIBLE_DEVICES",
    )


def lacking_formats(found: list[Gpu]) -> frozenset[str]:
    """Return the matmul formats that the hardware lacks or emulates."""
    if found:
        weakest = min(gpu.capability for gpu in found)
        has_bf16, has_fp8 = weakest >= BF16_CAPABILITY, weakest >= FP8_CAPABILITY
    else:
        has_bf16, has_fp8 = bool(bf16_flags()), False
    has = {"bf16": has_bf16, "fp16": bool(found), "tf32": bool(found) and has_bf16, "fp8": has_fp8}
    return frozenset(name for name, is_there in has.items() if not is_there)


def precision_support(lacking: frozenset[str], *, wanted: PrecisionFacts, fitting: str) -> Finding:
    """Report the hardware's matmul formats, compared with the config's precision; `fitting` names suitable ones."""
    formats = [name for name in ("fp32", "bf16", "fp8") if name not in lacking]
    return graded(
        "precision",
        f"fast products in {', '.join(formats)}; precision={wanted.name}",
        is_worse=wanted.bytes_of.matmul in lacking,
        fix=f"it would be emulated slowly, or refused: use {fitting}",
    )


def links(
    num_gpus: int, topology: str | None, *, num_nodes: int, whole_copies: str, infiniband: Path = INFINIBAND
) -> list[Finding]:
    """Report the links between a node's GPUs, from `nvidia-smi topo -m`, and between nodes.

    `whole_copies` names the strategies that send the least.
    """
    findings: list[Finding] = []
    if num_gpus > 1:
        kind = link_kind(topology or "")
        fix = f"without NVLink prefer {whole_copies}, and few reductions: a larger batch.tokens_per_step"
        is_slow = not (kind or "").startswith("NVLink")
        findings.append(graded("links", kind or "not known", is_worse=is_slow, fix=fix))
    if num_nodes > 1:
        adapters = sorted(path.name for path in infiniband.iterdir()) if infiniband.is_dir() else []
        found = f"InfiniBand {', '.join(adapters)}" if adapters else "no InfiniBand adapter"
        fix = "nodes communicate over Ethernet: set NCCL_SOCKET_IFNAME to the fastest interface"
        findings.append(graded("network", found, is_worse=not adapters, fix=fix))
    return findings


def link_kind(topology: str) -> str | None:
    """Return the GPUs' link in a matrix of `nvidia-smi topo -m`: the slowest of all pairs."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines()]
    rows = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    pairs = {cell for row in rows for cell in row[1 : len(rows) + 1] if cell != "X"}
    if not pairs:
        return None
    others = sorted(cell for cell in pairs if not re.fullmatch(r"NV\d+", cell))
    if others:
        return f"PCIe ({', '.join(others)})"
    return f"NVLink ({min(pairs, key=lambda cell: int(cell[2:]))})"


def compiler(environment: Mapping[str, str] = os.environ, *, without: str) -> Finding:
    """Find the C++ compiler of torch.compile; `without` names options that need none."""
    candidates = [name for name in (environment.get("CXX"), "g++", "clang++") if name]
    found = next((path for name in candidates if (path := shutil.which(name, path=environment.get("PATH")))), None)
    return graded(
        "C++ compiler",
        found or "none found: torch.compile cannot work",
        is_worse=found is None,
        fix=f"install g++ (`apt-get install g++`), set CXX, or train with {without}",
    )


def cores(num_ranks: int) -> Finding:
    """Compare this process's cores with its ranks."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return graded(
        "cores",
        f"{usable} usable, {format_count(num_ranks, 'rank')}",
        is_worse=usable < num_ranks,
        fix="give the job at least one core per rank, or lower trainer.devices",
    )


def shared_memory(*, num_processes: int) -> Finding:
    """Compare the free shared memory with the needs of ranks and data workers."""
    if not SHARED_MEMORY.is_dir():
        return Finding(name="shared memory", state="ok", found=f"this system has no {SHARED_MEMORY}")
    free = shutil.disk_usage(SHARED_MEMORY).free
    needed = NEEDED_SHARED_BYTES * num_processes
    size = format_quantity(needed, "bytes")
    processes = format_count(num_processes, "process", "processes")
    return graded(
        "shared memory",
        f"{format_quantity(free, 'bytes')} free in {SHARED_MEMORY}, {size} wanted for {processes}",
        is_worse=free < needed,
        is_bad=free < needed / 16,
        fix=f"start the container with --shm-size={size}, or mount a larger tmpfs there",
    )


def open_files() -> Finding:
    """Compare the limit of open files with the needs of shards, workers and sockets."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_unlimited = soft == resource.RLIM_INFINITY
    return graded(
        "open files",
        "no limit" if is_unlimited else f"at most {soft:,}, {NEEDED_FILES:,} wanted",
        is_worse=not is_unlimited and soft < NEEDED_FILES,
        is_bad=not is_unlimited and soft < NEEDED_FILES // 16,
        fix="raise it before the run: `ulimit -n 65536`",
    )


def nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the first existing one above it."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def disk_room(path: Path, *, needed_bytes: int) -> Finding:
    """Compare the free space with the kept checkpoints, and one more being written."""
    free = shutil.disk_usage(nearest_folder(path)).free
    needed = format_quantity(needed_bytes, "bytes")
    return graded(
        "disk room",
        f"{format_quantity(free, 'bytes')} free under {path}, {needed} planned for checkpoints",
        is_bad=free < needed_bytes,
        is_worse=free < 2 * needed_bytes,
        fix=f"free some space, set run.root to a disk with {needed}, or lower callbacks.checkpoint.keep_last",
    )


def disk_rates(path: Path, *, num_bytes: int = PROBE_BYTES) -> tuple[float, float]:
    """Write a file, sync it, read it back and remove it; return the bytes per second of both."""
    probe = nearest_folder(path) / f".doctor-{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"
    content = os.urandom(num_bytes)
    try:
        began = time.perf_counter()
        with probe.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter()
        probe.read_bytes()
        return num_bytes / (written - began), num_bytes / (time.perf_counter() - written)
    finally:
        probe.unlink(missing_ok=True)


def disk_speed(path: Path, *, checkpoint_bytes: int, num_bytes: int = PROBE_BYTES) -> Finding:
    """Report how fast a file is written and read, and how long a checkpoint would take."""
    try:
        write_rate, read_rate = disk_rates(path, num_bytes=num_bytes)
    except OSError as problem:
        fix = "set run.root to a writable folder"
        return Finding(name="disk speed", state="bad", found=f"{path}: {problem.strerror}", fix=fix)
    seconds = checkpoint_bytes / write_rate
    return graded(
        "disk speed",
        f"writes {write_rate / 1e6:,.0f} MB/s, reads {read_rate / 1e6:,.0f} MB/s (maybe cached); a checkpoint of "
        f"{format_quantity(checkpoint_bytes, 'bytes')} takes {format_quantity(seconds, 'seconds')}",
        is_worse=write_rate < SLOW_BYTES_PER_SECOND or seconds > SLOW_WRITE_SECONDS,
        fix="set run.root to a local disk, or save less often with callbacks.checkpoint.every_seconds",
    )
