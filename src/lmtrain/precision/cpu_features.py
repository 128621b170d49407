"""The matrix hardware of this machine's processor; read without torch, for plans at once."""

import platform
from pathlib import Path
from typing import Final

BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})


def cpu_flags() -> set[str]:
    """Return the processor's feature flags as Linux lists them, or nothing elsewhere."""
    return set(_first("flags").split())


def cpu_name() -> str:
    """Return the processor's product name, or its architecture where the system has no name."""
    return _first("model name") or platform.processor() or platform.machine()


def bf16_flags() -> set[str]:
    """Return the flags of fast products in bf16."""
    return cpu_flags() & BF16_FLAGS


def _first(entry: str) -> str:
    """Return the first processor's value of an entry of Linux's list, empty without one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(entry)), "")
