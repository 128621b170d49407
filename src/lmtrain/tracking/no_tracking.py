"""A way of tracking runs, and the one by the run's own folder alone: metrics.jsonl and status.json, no server."""

from pathlib import Path
from typing import Any, Protocol

from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Close, Status, StatusName, Tracked, close_run, no_files, write_status


class Tracking(Protocol):
    """An option of `logger`."""

    def start(self, run_folder: RunFolder) -> Any:
        """Say that the run goes on; `finish(status)` of the handle says its end, `at_once` where somebody waits."""
        ...

    def finish_sweep(self, root: Path, sweep: str, *, status: StatusName = "FINISHED") -> None:
        """Say how a sweep of grouped runs ended."""
        ...


class NoTracking:
    """Send a run nowhere."""

    def start(self, run_folder: RunFolder) -> "FolderHandle":
        """Tell of a run going on."""
        write_status(run_folder.path, Status("RUNNING"))
        return FolderHandle(run_folder)

    def finish_sweep(self, root: Path, sweep: str, *, status: StatusName = "FINISHED") -> None:
        """Do nothing: the sweep has no server."""
        del root, sweep, status


class FolderHandle:
    """A run tracked by its folder alone."""

    def __init__(self, run_folder: RunFolder) -> None:
        self._folder = run_folder

    def finish(self, status: Status, *, at_once: bool = False, close: Close = no_files) -> Tracked:
        """Write how the run ended; there is nothing to wait for."""
        del at_once
        close_run(self._folder.path, status, close)
        return Tracked(run_id=None, is_complete=True)
