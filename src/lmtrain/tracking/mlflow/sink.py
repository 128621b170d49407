"""Feed a run to MLflow from a separate process: `python -m lmtrain.tracking.mlflow.sink RUN_FOLDER`.

The trainer and this process share the run folder alone, so a dead, slow or locked server costs the trainer nothing.
Everything is repeated until it succeeds. The process ends with the run, or, when the trainer is gone, soon after it.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.mlflow.client import Store, open_client
from lmtrain.tracking.redaction import RedactedStream, redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, read_status, write_status

if TYPE_CHECKING:
    from lmtrain.tracking.mlflow.run import MlflowRun

POLL_SECONDS = 5.0  # a call costs MLflow 5 ms and each value 0.05 more (3.x on sqlite)
SLICE_SECONDS = 0.2
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
ORPHAN_GRACE_SECONDS: Final = 2.0  # for the launcher of a killed rank to write the run's end before we call it KILLED
ORPHAN_LIMIT_SECONDS: Final = 60.0
PREDECESSOR_SECONDS: Final = 90.0
ERROR_CHARACTERS: Final = 200


@dataclass(frozen=True)
class SinkState:
    """A sink's progress, for its trainer: the id of the run in its store, and the last error until it has passed."""

    run_id: str | None = None
    error: str | None = None


def read_state(folder: Path) -> SinkState:
    """Return the progress of a run folder's last sink."""
    row: dict[str, Any] = atomic_files.read_json(folder / "mlflow_state.json")
    return SinkState(run_id=row.get("run_id"), error=row.get("error"))


def write_state(folder: Path, state: SinkState) -> None:
    """Write a sink's progress."""
    atomic_files.write_json(folder / "mlflow_state.json", asdict(state))


class Sink:
    """One run folder on its way to one store; a method may raise anything, and then may be called again."""

    def __init__(self, folder: RunFolder, store: Store) -> None:
        self._folder, self._store = folder, store
        self._state = read_state(folder.path)
        self._run: MlflowRun | None = None

    def send(self) -> bool:
        """Send what is missing in the store, and return whether that was all."""
        if self._run is None:
            client = open_client(self._store)
            from lmtrain.tracking.mlflow.run import MlflowRun  # imports MLflow, after open_client has set it up

            run = MlflowRun(client, self._store, self._folder)
            status = read_status(self._folder.path)
            if status is not None and status.status == "RUNNING":
                run.mark_running()
            self._run = run
        is_all = self._run.send()
        self._note(SinkState(run_id=self._run.run_id))
        return is_all

    def end(self, status: Status) -> None:
        """Give the run its last state in the store; one of RUNNING means another process's hold of it."""
        if self._run is not None and status.status != "RUNNING":
            self._run.end(status)

    def fail(self, error: Exception) -> None:
        """Remember why nothing was sent."""
        text = redact_text(f"{type(error).__name__}: {error}".strip())
        short = text.splitlines()[0][:ERROR_CHARACTERS]
        if self._state.error != short:
            sys.stderr.write(f"{text}\n")
        with contextlib.suppress(EnvironmentProblem):  # a disk that is full is full for this too
            self._note(replace(self._state, error=short))

    def _note(self, state: SinkState) -> None:
        if state != self._state:
            self._state = state
            write_state(self._folder.path, state)


def follow(
    run_folder: Path,
    store: Store,
    *,
    last_status: Callable[[], Status | None],
    drain_seconds: float = 10.0,
) -> bool:
    """Send a run until last_status is an end; return whether the store then has everything.

    Failures are repeated for as long as the run goes on, and for drain_seconds after it.
    """
    folder = RunFolder(run_folder)
    with file_lock(folder.path / ".mlflow.lock", wait_seconds=PREDECESSOR_SECONDS):
        sink = Sink(folder, store)
        deadline, pause = float("inf"), FIRST_PAUSE_SECONDS
        while True:
            status = last_status()
            if status is not None:
                deadline = min(deadline, time.monotonic() + drain_seconds)
            try:
                is_all = sink.send()
                if is_all and status is not None:
                    sink.end(status)
                    return True
                pause = FIRST_PAUSE_SECONDS
                _wait(POLL_SECONDS if is_all else 0.0, last_status)
            except Exception as error:  # noqa: BLE001  after any error of MLflow and its drivers, repeat
                sink.fail(error)
                is_final = status is not None and isinstance(error, PermissionError)
                if is_final or time.monotonic() > deadline:
                    return False
                _wait(pause * random.uniform(0.75, 1.25), last_status)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def _wait(seconds: float, last_status: Callable[[], Status | None]) -> None:
    """Sleep, shorter once the run has ended."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, SLICE_SECONDS))
        if last_status() is not None:
            return


def last_status(folder: Path, trainer: int) -> Status | None:
    """Return how a run ended, None while its trainer, our parent, is at it; a killed one's end is recorded here."""
    status, is_there = read_status(folder), os.getppid() == trainer
    if status is not None and status.status != "RUNNING" and not (status.is_closing and is_there):
        return status
    if is_there:
        return None
    time.sleep(ORPHAN_GRACE_SECONDS)
    status = read_status(folder)
    if status is None or (status.status == "RUNNING" and status.process == trainer):
        write_status(folder, Status("KILLED", process=trainer))
    return read_status(folder)


def main() -> int:
    """Follow the command line's run, with the settings on stdin, unreadable to other processes."""
    parser = argparse.ArgumentParser(prog="lmtrain.tracking.mlflow.sink")
    parser.add_argument("run_folder", type=Path)
    run_folder = cast("Path", parser.parse_args().run_folder).absolute()
    settings = json.loads(sys.stdin.read())
    process = int(settings["trainer"])
    sys.stdout = sys.stderr = RedactedStream(sys.stderr)  # the output of MLflow and its drivers goes into a file
    os.nice(10)
    threading.Thread(target=_end_after, args=(process,), daemon=True).start()
    store = Store(RunFolder(run_folder).known_root(), settings["tracking_uri"], settings["experiment"])
    ended = partial(last_status, run_folder, process)
    return 0 if follow(run_folder, store, last_status=ended, drain_seconds=settings["drain_seconds"]) else 1


def _end_after(process: int) -> None:
    # A call into a frozen server or a locked database must not keep us alive when nobody waits for us.
    while os.getppid() == process:
        time.sleep(SLICE_SECONDS)
    time.sleep(ORPHAN_LIMIT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
