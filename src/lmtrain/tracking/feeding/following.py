"""Hand a run's points to a tracker from a thread: the training thread appends to metrics.jsonl and waits for nobody."""

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from lmtrain.tracking.feeding.held_out_curves import HeldOutCurves
from lmtrain.tracking.log_tail import LogOffset, read_after
from lmtrain.tracking.redacting.redaction import redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.status import Close, Status, StatusName, Tracked, close_run, no_files, write_status

POLL_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 30.0
AT_ONCE_SECONDS: Final = 2.0  # where somebody waits for a stop


class PointWriter(Protocol):
    """The tracker's side of a run under way; any error ends the tracking and not the run."""

    def write(self, points: Sequence[Point]) -> None:
        """Take points, those of the run's start first."""
        ...

    def close(self, status: Status) -> None:
        """Write the remaining points, and the run's end."""
        ...


class FollowingHandle:
    """A run followed by a thread, from the first point in its folder on."""

    def __init__(self, run_folder: RunFolder, name: str, open_writer: Callable[[], PointWriter]) -> None:
        self._folder, self._name = run_folder, name
        self._status: Status | None = None
        self._ended = threading.Event()
        self._error: str | None = None
        write_status(run_folder.path, Status("RUNNING"))
        self._thread = threading.Thread(target=self._follow, args=(open_writer,), name=f"lmtrain-{name}", daemon=True)
        self._thread.start()

    def finish(self, status: Status, *, at_once: bool = False, close: Close = no_files) -> Tracked:
        """Write how the run ended and wait for the rest to be written, DRAIN_SECONDS at most."""
        close_run(self._folder.path, status, close)
        self._status = status
        self._ended.set()
        self._thread.join(AT_ONCE_SECONDS if at_once else DRAIN_SECONDS)
        if self._thread.is_alive() and not at_once:
            self._error = f"it was not done within {DRAIN_SECONDS:g} seconds"
        if self._error:
            sys.stderr.write(f"{self._name} lacks a part of this run ({self._error}). metrics.jsonl has every point.\n")
        return Tracked(run_id=None, is_complete=self._error is None and not self._thread.is_alive())

    def _follow(self, open_writer: Callable[[], PointWriter]) -> None:
        try:
            writer, place = open_writer(), LogOffset()
            curves = HeldOutCurves(self._folder.metrics_path)
            while True:
                has_ended = self._ended.is_set()  # asked before reading: later points are read once more
                batch = read_after(self._folder.metrics_path, place)
                place = batch.next
                if batch.points:
                    writer.write(curves.apart(batch.points))
                elif has_ended:
                    break
                else:
                    self._ended.wait(POLL_SECONDS)
            assert self._status is not None
            writer.close(self._status)
        except Exception as error:  # noqa: BLE001  any error of a tracker and its drivers; the run goes on
            self._error = redact_text(f"{type(error).__name__}: {error}").strip().splitlines()[0]


class WithoutSweeps:
    """The common part of trackers without a parent of a sweep's runs."""

    def finish_sweep(self, root: Path, sweep: str, *, status: StatusName = "FINISHED") -> None:
        """Do nothing: each run stands for itself."""
        del root, sweep, status
