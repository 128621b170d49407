"""Let one process at a time do something on a machine or a shared file system."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Generator
from pathlib import Path

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.atomic_files import storage_problem

POLL_SECONDS = 0.05


@contextlib.contextmanager
def file_lock(
    path: Path, *, wait_seconds: float, note: str = "", refusal: str = "", waiting: Callable[[str], None] | None = None
) -> Generator[None]:
    """Hold the lock file at path while the body runs; note names its holder to others.

    `waiting` is called with the holder's note, once, where the lock is not free at first.
    A record lock: unlike flock it is not inherited by forked loader workers, alive for a moment after a killed run.

    Raises:
        EnvironmentProblem: It cannot be written, or is not free in time; then the message is refusal, with the holder's
            note for HOLDER.
    """
    try:
        opened = path.open("a+")
    except OSError as problem:
        raise storage_problem(path, problem) from problem
    with opened as file:
        deadline = time.monotonic() + wait_seconds
        while not _try_lock(file.fileno()):
            file.seek(0)
            holder = file.read().strip() or "another process"
            if time.monotonic() >= deadline:
                raise EnvironmentProblem((refusal or f"{path} is held by HOLDER.").replace("HOLDER", holder))
            if waiting:
                waiting(holder)
                waiting = None
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(note)
        file.flush()  # through this very file: closing another one on this path would drop the lock
        yield


def this_process() -> str:
    """Name this process, for the note of a lock: its number and its machine."""
    return f"{os.getpid()} on {socket.gethostname()}"


def is_held(path: Path) -> bool:
    """Report whether another process holds the lock file at path, or may: it is a link, or cannot be opened.

    The file is opened for reading, and never made: commands that read a run write nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
