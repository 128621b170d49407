"""End a process with its parent, however the parent ended: kill -9 leaves no orphan."""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.5


def die_with_parent(parent: int) -> None:
    """Kill this process as soon as its parent has ended.

    Linux does it at once; elsewhere a thread looks twice a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_loader(worker: int) -> None:
    """Kill this process, a loader's worker, as soon as its parent has ended."""
    del worker
    die_with_parent(os.getppid())


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
