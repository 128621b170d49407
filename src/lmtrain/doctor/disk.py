"""The disk under a folder: room for the planned checkpoints, and how fast it takes and gives bytes."""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.doctor.finding import Finding, graded

PROBE_BYTES: Final = 32 * 2**20
SLOW_BYTES_PER_SECOND: Final = 50e6
SLOW_WRITE_SECONDS: Final = 120


@dataclass(frozen=True)
class DiskSpeed:
    """Bytes per second of a synced write, and of reading the same file again."""

    write: float
    read: float


def nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the first existing one above it."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def room(path: Path, *, needed_bytes: int, free: int | None = None) -> Finding:
    """Hold the free space against the kept checkpoints, and one more being written."""
    folder = nearest_folder(path)
    free = shutil.disk_usage(folder).free if free is None else free
    needed = format_quantity(needed_bytes, "bytes")
    return graded(
        "disk room",
        f"{format_quantity(free, 'bytes')} free under {path}, {needed} planned for checkpoints",
        is_bad=free < needed_bytes,
        is_worse=free < 2 * needed_bytes,
        fix=f"free some space, set run.root to a disk with {needed}, or lower callbacks.checkpoint.keep_last",
    )


def measure_disk(path: Path, *, num_bytes: int = PROBE_BYTES) -> DiskSpeed:
    """Write a file of random bytes, sync it, read it back, remove it."""
    probe = nearest_folder(path) / f".doctor-{os.getpid()}-{time.time_ns():x}"
    content = os.urandom(num_bytes)
    try:
        start = time.perf_counter()
        with probe.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter()
        probe.read_bytes()
        return DiskSpeed(num_bytes / (written - start), num_bytes / (time.perf_counter() - written))
    finally:
        probe.unlink(missing_ok=True)


def disk_speed(path: Path, *, checkpoint_bytes: int, num_bytes: int = PROBE_BYTES) -> Finding:
    """Measure the disk and tell how long a checkpoint takes on it; a read-only folder is bad."""
    try:
        speed = measure_disk(path, num_bytes=num_bytes)
    except OSError as problem:
        fix = "set run.root to a folder that can be written"
        return Finding(name="disk speed", state="bad", found=f"{path}: {problem.strerror}", fix=fix)
    seconds = checkpoint_bytes / speed.write
    return graded(
        "disk speed",
        f"writes {speed.write / 1e6:,.0f} MB/s, reads {speed.read / 1e6:,.0f} MB/s (maybe cached); a checkpoint of "
        f"{format_quantity(checkpoint_bytes, 'bytes')} takes {format_quantity(seconds, 'seconds')}",
        is_worse=speed.write < SLOW_BYTES_PER_SECOND or seconds > SLOW_WRITE_SECONDS,
        fix="set run.root to a local disk, or save less often with callbacks.checkpoint.every_seconds",
    )
