"""A real file system of a few megabytes, seen by one process alone: in memory, in namespaces of the process's own."""

import ctypes
import os
from functools import cache
from pathlib import Path

NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000  # linux/sched.h
READ_ONLY = 1  # linux/mount.h


def mount_small_disk(folder: Path, *, num_bytes: int, is_read_only: bool = False) -> None:
    """Put an empty disk of so many bytes over a folder, for this process and its children; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    _require(libc.unshare(NEW_USER | NEW_MOUNTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _require(
        libc.mount(
            b"tmpfs", os.fsencode(folder), b"tmpfs", READ_ONLY if is_read_only else 0, f"size={num_bytes}".encode()
        )
    )


@cache
def reason_for_none(folder: Path) -> str:
    """Return why this machine mounts no small disk, "" where it does."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            mount_small_disk(folder, num_bytes=1 << 20)
        except OSError as problem:
            os.write(write, f"no small disk can be mounted: {problem}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as said:
        return said.read()


def _require(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
