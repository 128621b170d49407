"""The accelerators, their driver, their number formats, and their links."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from lmtrain.accounting.machine.hardware import find_device
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.doctor.finding import Finding, graded
from lmtrain.precision.cpu_features import bf16_flags

INFINIBAND: Final = Path("/sys/class/infiniband")
BF16_CAPABILITY: Final = (8, 0)
FP8_CAPABILITY: Final = (8, 9)
SMI_SECONDS: Final = 20


@dataclass(frozen=True)
class Gpu:
    """One CUDA device as torch sees it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int


def gpus() -> list[Gpu]:
    """Return the CUDA devices of this process, none where there is no GPU."""
    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [Gpu(each.name, (each.major, each.minor), each.total_memory) for each in properties]


def nvidia_smi(*words: str) -> str | None:
    """Return nvidia-smi's output, or None where it is absent or does not answer."""
    try:
        ended = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def driver(found: list[Gpu], smi: str | None) -> Finding:
    """Report the devices and their driver; `smi` is the driver's version as nvidia-smi says it, None without one."""
    version = (smi or "").strip().partition("\n")[0]
    if found:
        names = ", ".join(sorted({gpu.name for gpu in found}))
        text = f"{len(found)} x {names}, driver {version or 'unknown'}, CUDA {torch.version.cuda}"
        return Finding(name="devices", state="ok", found=text)
    return graded(
        "devices",
        f"driver {version}, but torch sees no GPU" if version else "CPU only: there is no NVIDIA driver",
        is_bad=bool(version),
        fix="install a torch built for CUDA that fits the driver, and look at CUDA_VISIBLE_DEVICES",
    )


def same_devices(found: list[Gpu]) -> list[Finding]:
    """Warn of mixed devices, and of one without a known peak."""
    names = sorted({gpu.name for gpu in found})
    findings = [
        graded(
            "same devices",
            f"{len(names)} kinds: {', '.join(names)}" if len(names) > 1 else names[0],
            is_worse=len(names) > 1,
            fix="every rank waits for the slowest: choose one kind with CUDA_VISIBLE_DEVICES",
        )
        for _ in names[:1]
    ]
    unknown = [name for name in names if find_device(name) is None]
    if unknown:
        fix = "the measured matmul peak is used for MFU; set cluster.peak_flops to the data sheet's dense peak"
        findings.append(Finding(name="known peak", state="warn", found=f"no table has {unknown[0]}", fix=fix))
    return findings


def lacking_formats(found: list[Gpu]) -> frozenset[str]:
    """Return the formats of products emulated by the hardware, or missing there."""
    if found:
        weakest = min(gpu.capability for gpu in found)
        has_bf16, has_fp8 = weakest >= BF16_CAPABILITY, weakest >= FP8_CAPABILITY
    else:
        has_bf16, has_fp8 = bool(bf16_flags()), False
    has = {"bf16": has_bf16, "fp16": bool(found), "tf32": bool(found) and has_bf16, "fp8": has_fp8}
    return frozenset(name for name, is_there in has.items() if not is_there)


def precision_support(lacking: frozenset[str], *, wanted: PrecisionFacts, fitting: str) -> Finding:
    """Report the hardware's formats of products, against the config's precision; `fitting` are words of others."""
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
    """Report the links of a node's GPUs, by `nvidia-smi topo -m`, and of nodes, by their InfiniBand adapters.

    `whole_copies` are the words of strategies that send the least.
    """
    findings: list[Finding] = []
    if num_gpus > 1:
        kind = link_kind(topology or "")
        findings.append(
            graded(
                "links",
                kind or "not known",
                is_worse=not (kind or "").startswith("NVLink"),
                fix=f"without NVLink prefer {whole_copies}, and few reductions: a larger batch.tokens_per_step",
            )
        )
    adapters = sorted(path.name for path in infiniband.iterdir()) if infiniband.is_dir() else []
    if num_nodes > 1:
        findings.append(
            graded(
                "network",
                f"InfiniBand {', '.join(adapters)}" if adapters else "no InfiniBand adapter",
                is_worse=not adapters,
                fix="nodes will talk over Ethernet: set NCCL_SOCKET_IFNAME to the fastest one",
            )
        )
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
