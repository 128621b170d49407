"""Let a process that training started end with it, so that kill -9 leaves no orphan."""

import ctypes
import signal


def die_with_parent(worker: int = 0) -> None:
    """Ask Linux to kill this process when the one that started it dies; `worker` is a loader's number, unused."""
    del worker
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG in <sys/prctl.h>
    try:
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    except (AttributeError, OSError):
        return  # not Linux: the loader's watchdog thread, or the pipe that closes, ends it within seconds
