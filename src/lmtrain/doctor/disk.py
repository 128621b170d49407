"""The disk under a folder: room for the planned checkpoints, and its speed."""

import os
import shutil
import time
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import format_quantity
from lmtrain.doctor.finding import Finding, graded

PROBE_BYTES: Final = 32 * 2**20
SLOW_BYTES_PER_SECOND: Final = 50e6
SLOW_WRITE_SECONDS: Final = 120


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


def disk_speed(path: Path, *, checkpoint_bytes: int, num_bytes: int = PROBE_BYTES) -> Finding:
    """Write a file, sync it, read it back and remove it; report how long a checkpoint would take."""
    probe = nearest_folder(path) / f".doctor-{os.getpid()}-{time.time_ns():x}"
    content = os.urandom(num_bytes)
    try:
        began = time.perf_counter()
        with probe.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        written = time.perf_counter()
        probe.read_bytes()
        read = time.perf_counter()
    except OSError as problem:
        fix = "set run.root to a writable folder"
        return Finding(name="disk speed", state="bad", found=f"{path}: {problem.strerror}", fix=fix)
    finally:
        probe.unlink(missing_ok=True)
    write_rate, read_rate = num_bytes / (written - began), num_bytes / (read - written)
    seconds = checkpoint_bytes / write_rate
    return graded(
        "disk speed",
        f"writes {write_rate / 1e6:,.0f} MB/s, reads {read_rate / 1e6:,.0f} MB/s (maybe cached); a checkpoint of "
        f"{format_quantity(checkpoint_bytes, 'bytes')} takes {format_quantity(seconds, 'seconds')}",
        is_worse=write_rate < SLOW_BYTES_PER_SECOND or seconds > SLOW_WRITE_SECONDS,
        fix="set run.root to a local disk, or save less often with callbacks.checkpoint.every_seconds",
    )
