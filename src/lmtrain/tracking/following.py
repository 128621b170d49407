"""A way of tracking runs, and the one by the run's own folder alone: metrics.jsonl and status.json, no server."""

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from lmtrain.tracking import atomic_files
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import LogOffset, Point, read_after
from lmtrain.tracking.status import Status, StatusName, write_status

POLL_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 30.0
AT_ONCE_SECONDS: Final = 2.0  # where somebody waits for a stop


class Tracking:
    """An option of `logger`, and by itself the tracking by the run's folder alone."""

    def start(self, run_folder: RunFolder) -> None:
        """Mark the run as running; one rank calls it, after start_attempt."""
        self._folder = run_folder
        write_status(run_folder.path, Status("RUNNING"))

    def finish(self, status: Status, *, at_once: bool = False) -> bool:
        """Write how the run ended, and return whether the tracker has all of it; `at_once` where somebody waits."""
        del at_once
        write_status(self._folder.path, status)
        return True

    def finish_sweep(self, folder: Path, sweep: str, *, root: Path, status: StatusName = "FINISHED") -> None:
        """Record how the sweep in a folder ended, where the tracker has a parent for its runs."""


class NoTracking(Tracking):
    """Send a run nowhere."""


class Following(Tracking):
    """Follow a run by a thread, from the first point in its folder on; `name` is the tracker's, for people.

    The thread calls `open`, `write` and `close`; any error of theirs ends the tracking and not the run.
    """

    name: str

    def open(self, run_folder: RunFolder) -> None:
        """Go on with the run of this folder there, or begin it."""
        raise NotImplementedError

    def write(self, points: Sequence[Point]) -> None:
        """Take points, those of the run's start first."""
        raise NotImplementedError

    def close(self, status: Status) -> None:
        """Write the remaining points, and the run's end."""
        raise NotImplementedError

    @override
    def start(self, run_folder: RunFolder) -> None:
        super().start(run_folder)
        self._status: Status | None = None
        self._ended = threading.Event()
        self._error: str | None = None
        self._thread = threading.Thread(target=self._follow, name=f"lmtrain-{self.name}", daemon=True)
        self._thread.start()

    @override
    def finish(self, status: Status, *, at_once: bool = False) -> bool:
        """Write how the run ended, and wait for the rest to be written, DRAIN_SECONDS at most."""
        super().finish(status)
        self._status = status
        self._ended.set()
        self._thread.join(AT_ONCE_SECONDS if at_once else DRAIN_SECONDS)
        if self._thread.is_alive() and not at_once:
            self._error = f"it was not done within {DRAIN_SECONDS:g} seconds"
        if self._error:
            sys.stderr.write(f"{self.name} lacks a part of this run ({self._error}). metrics.jsonl has every point.\n")
        return self._error is None and not self._thread.is_alive()

    def _follow(self) -> None:
        try:
            self.open(self._folder)
            place = LogOffset()
            while True:
                has_ended = self._ended.is_set()  # asked before reading: later points are read once more
                points, place = read_after(self._folder.metrics_path, place)
                if points:
                    self.write(points)
                elif has_ended:
                    break
                else:
                    self._ended.wait(POLL_SECONDS)
            assert self._status is not None
            self.close(self._status)
        except Exception as error:  # noqa: BLE001  any error of a tracker and its drivers; the run goes on
            self._error = redact_text(f"{type(error).__name__}: {error}").strip().splitlines()[0]


class SentPoints:
    """The points sent of each curve to a store, by its highest step and by the older steps after it; another lacks all.

    An older step comes from the score of an earlier checkpoint.
    """

    def __init__(self, path: Path, *, store: str) -> None:
        self._path = path
        state = atomic_files.read_json(path)
        known = state if state.get("store") == store else {}
        self._state: dict[str, Any] = {"highest": {}, "late": {}, **known, "store": store}
        self._read: dict[str, int] = {}  # of each curve the highest step read in the log

    def take(self, key: str, step: int) -> bool:
        """Return whether a curve's step was not sent yet; it counts as sent."""
        read, highest, late = self._read.get(key, -1), self._state["highest"], self._state["late"]
        self._read[key] = max(read, step)
        if step > highest.get(key, -1):
            highest[key] = step
            return True
        if step < read and step not in late.get(key, ()):
            late[key] = [*late.get(key, ()), step]
            return True
        return False

    def begin_again(self) -> None:
        """Note that the log is read from its first point again: a resume has replaced it."""
        self._read = {}

    def keep(self) -> None:
        """Write the steps sent."""
        atomic_files.write_json(self._path, self._state)
