"""The matrix hardware of this machine's processor; read without torch, for plans at once."""

import platform
from pathlib import Path
from typing import Final

BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})


def cpu_flags() -> set[str]:
    """Return the processor's feature flags as Linux lists them, or nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":")[1].split()) for line in lines if line.startswith("flags")), set())


def cpu_name() -> str:
    """Return the processor's product name, or its architecture where the system has no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def bf16_flags() -> set[str]:
    """Return the flags of fast products in bf16."""
    return cpu_flags() & BF16_FLAGS
