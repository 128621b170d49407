"""The memory free for a new process on this machine."""

from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory free for a new process, caches given back, within its control group; None if unknown."""
    found = [*_of_kernel(meminfo), *_of_group(group)]
    return min(found) if found else None


def _of_kernel(meminfo: Path) -> list[int]:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]


def _of_group(group: Path) -> list[int]:
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return []
    return [int(limit) - int(used)] if limit.isdigit() else []
