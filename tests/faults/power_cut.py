"""`train.py WORDS` on a file system that loses its power at the n-th change of a file: power_cut.py MOUNT N WORDS.

Changes are files opened for writing, renames, new folders and fsyncs of this process. N of 0 only counts them: their
number is the last line printed. The file system stops without a flush of its journal (`man 2 ioctl_xfs_goingdown`).
"""

import ctypes
import fcntl
import os
import runpy
import struct
import sys
from pathlib import Path
from typing import Any

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN of linux/ext4.h
WITHOUT_THE_JOURNAL = 2
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.truncate")
EXIT_CUT = 77


def cut_power(mount: Path) -> None:
    """Stop every write to a file system, as a machine without power would, and end this process."""
    descriptor = os.open(mount, os.O_RDONLY)
    fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_THE_JOURNAL))
    os._exit(EXIT_CUT)


def watch(mount: Path, cut_at: int) -> list[int]:
    """Count the changes of files below `mount` from here on; cut the power before number `cut_at` (from 1)."""
    count, owner = [0], os.getpid()

    def changed() -> None:
        if os.getpid() == owner:
            count[0] += 1
            if count[0] == cut_at:
                cut_power(mount)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        is_written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_written or event in CHANGES) and not isinstance(arguments[0], int):
            changed()

    libc = ctypes.CDLL(None)  # the server of forks leaves Python's own fsync out

    def counted(descriptor: int) -> None:
        changed()
        libc.fsync(descriptor)

    sys.addaudithook(hook)
    os.fsync = counted
    return count


if __name__ == "__main__":
    mount, cut_at = Path(sys.argv.pop(1)), int(sys.argv.pop(1))
    count = watch(mount, cut_at)
    sys.argv[0] = str(Path(__file__).parents[2] / "train.py")
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        print(f"\nCHANGES {count[0]}", flush=True)
