"""Name stopped ranks: the others wait for them in silence, until the job ends much later."""

import os
from collections.abc import Mapping
from typing import Final

TELL_AFTER_SECONDS: Final = 10.0


class StoppedRanks:
    """Watch children for SIGSTOP, a debugger or a frozen terminal; one line when a stop lasts, one when it is over."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._since: dict[int, float] = {}
        self._told: set[int] = set()

    def news(self, processes: Mapping[int, int], *, now: float) -> list[str]:
        """Return the notices at `now` (monotonic seconds) on the processes, child processes by rank."""
        lines: list[str] = []
        for rank, process in processes.items():
            if not is_stopped(process):
                self._since.pop(rank, None)
                if rank in self._told:
                    self._told.remove(rank)
                    lines.append(f"rank {rank} of {self._num_ranks} goes on.")
            elif now - self._since.setdefault(rank, now) >= TELL_AFTER_SECONDS and rank not in self._told:
                self._told.add(rank)
                lines.append(
                    f"rank {rank} of {self._num_ranks} (process {process}) has been stopped for "
                    f"{now - self._since[rank]:.0f} s, and the others wait for it; "
                    f"`kill -CONT {process}` lets it go on."
                )
        return lines


def is_stopped(process: int) -> bool:
    """Tell whether a child is stopped by a signal, without taking that news from whoever waits for it."""
    try:
        return os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has just ended: a zombie stops no more
        return False
