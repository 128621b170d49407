"""Feed a run to MLflow from a separate process: `python -m lmtrain.tracking.mlflow.sink RUN_FOLDER`.

The trainer and this process share the run folder alone, so a dead, slow or locked server costs the trainer nothing.
Everything is repeated until it succeeds; its progress is kept in mlflow_state.json, and asked of the server at the
start. The process ends with the run, or, when the trainer is gone, soon after it.
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
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import file_lock
from lmtrain.tracking.mlflow.client import Store, open_client
from lmtrain.tracking.node_load import load_logs
from lmtrain.tracking.redaction import RedactedStream, redact_text
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import LogOffset, read_after
from lmtrain.tracking.status import Status, read_status, write_status

if TYPE_CHECKING:
    from lmtrain.tracking.mlflow.run import MlflowRun

Phase = Literal["starting", "sending", "failing", "done"]

POLL_SECONDS = 5.0  # a call costs MLflow 5 ms and each value 0.05 more (3.x on sqlite)
SLICE_SECONDS = 0.2
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
ORPHAN_GRACE_SECONDS = 2.0  # for the launcher of a killed rank to write the run's end before we call it KILLED
ORPHAN_LIMIT_SECONDS = 60.0
PREDECESSOR_SECONDS = 90.0
NICENESS = 10
ERROR_CHARACTERS = 200


@dataclass(frozen=True)
class SinkState:
    """A sink's progress, for its trainer and for the next sink; all of it holds for one store only."""

    phase: Phase = "starting"
    store: str | None = None
    run_id: str | None = None
    inode: int = 0
    offset: int = 0
    error: str | None = None


def read_state(folder: Path) -> SinkState:
    """Return the progress of a run folder's last sink."""
    row = atomic_files.read_json(folder / "mlflow_state.json")
    known = {name: row[name] for name in SinkState.__dataclass_fields__ if name in row}
    return SinkState(**known)  # pyright: ignore[reportArgumentType]


def write_state(folder: Path, state: SinkState) -> None:
    """Write a sink's progress."""
    atomic_files.write_json(folder / "mlflow_state.json", asdict(state))


class Sink:
    """One run folder on its way to one store; a method may raise anything, and then may be called again."""

    def __init__(self, folder: RunFolder, store: Store) -> None:
        self.state = SinkState(store=redact_text(f"{store.tracking_uri} {store.experiment}"))
        before = read_state(folder.path)
        if before.store == self.state.store:
            self.state = replace(before, phase="starting", error=None)
        self._folder = folder
        self._store = store
        self._run: MlflowRun | None = None
        self._load_places: dict[Path, LogOffset] = {}

    def send(self) -> bool:
        """Send the store's missing points, about a megabyte at most, and return whether they were all."""
        run = self._connected()
        batch = read_after(self._folder.metrics_path, LogOffset(self.state.inode, self.state.offset))
        place = batch.next
        run.send_points(batch.points, goes_on=place.inode == self.state.inode and self.state.offset > 0)
        self._remember(replace(self.state, phase="sending", error=None, inode=place.inode, offset=place.offset))
        run.send_attempts()
        num_of_load = sum(self._send_load(run, path) for path in load_logs(self._folder.path))
        return not batch.points and not num_of_load

    def _send_load(self, run: "MlflowRun", path: Path) -> int:
        """Send a part of a node's load and return its number of points; a new process reads it from its start."""
        batch = read_after(path, self._load_places.get(path, LogOffset()))
        run.send_load(batch.points)
        self._load_places[path] = batch.next
        return len(batch.points)

    def end(self, status: Status) -> None:
        """Give the run its last state in the store."""
        self._connected().end(status)
        self._remember(replace(self.state, phase="done", error=None))

    def fail(self, error: Exception) -> None:
        """Remember why nothing was sent."""
        text = redact_text(f"{type(error).__name__}: {error}".strip())
        short = text.splitlines()[0][:ERROR_CHARACTERS]
        if self.state.error != short:
            sys.stderr.write(f"{text}\n")
        with contextlib.suppress(EnvironmentProblem):  # a disk that is full is full for this too
            self._remember(replace(self.state, phase="failing", error=short))

    def _connected(self) -> "MlflowRun":
        if self._run is None:
            client = open_client(self._store)
            self._remember(replace(self.state, phase="sending"))  # from here on a slow answer is the server's doing
            from lmtrain.tracking.mlflow.run import MlflowRun  # imports MLflow, after open_client has set it up

            run = MlflowRun(client, self._store, self._folder)
            status = read_status(self._folder.path)
            if status is not None and status.status == "RUNNING":
                run.mark_running()
            self._remember(replace(self.state, run_id=run.run_id))
            self._run = run
        return self._run

    def _remember(self, state: SinkState) -> None:
        if state != self.state:
            write_state(self._folder.path, state)
            self.state = state


def follow(
    run_folder: Path,
    *,
    tracking_uri: str,
    experiment: str,
    last_status: Callable[[], Status | None],
    drain_seconds: float = 10.0,
) -> bool:
    """Send a run until last_status is an end; return whether the store then has everything.

    Failures are repeated for as long as the run goes on, and for drain_seconds after it. A last status of RUNNING means
    another process's hold of the run: it is sent, but not ended.
    """
    folder = RunFolder(run_folder)
    root = folder.known_root()
    with file_lock(folder.path / ".mlflow.lock", wait_seconds=PREDECESSOR_SECONDS, note=str(os.getpid())):
        sink = Sink(folder, Store(root, tracking_uri, experiment))
        deadline: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            status = last_status()
            if status is not None and deadline is None:
                deadline = time.monotonic() + drain_seconds
            try:
                is_all = sink.send()
                if is_all and status is not None:
                    if status.status != "RUNNING":
                        sink.end(status)
                    return True
                pause = FIRST_PAUSE_SECONDS
                _wait(POLL_SECONDS if is_all else 0.0, last_status)
            except Exception as error:  # noqa: BLE001  after any error of MLflow and its drivers, repeat
                sink.fail(error)
                is_final = isinstance(error, PermissionError)
                if deadline is not None and (is_final or time.monotonic() > deadline):
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


class Trainer:
    """The training process, our parent."""

    def __init__(self, process: int, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._gone_at: float | None = None

    def last_status(self) -> Status | None:
        """Return how the run ended, None while it goes on; a killed trainer could not say so, and we do."""
        status = read_status(self._folder)
        is_closing = status is not None and status.is_closing and os.getppid() == self._process
        if status is not None and status.status != "RUNNING" and not is_closing:
            return status
        if os.getppid() == self._process:
            return None
        self._gone_at = self._gone_at or time.monotonic()
        if time.monotonic() - self._gone_at < ORPHAN_GRACE_SECONDS:
            return None
        if status is None or status.process == self._process:
            write_status(self._folder, Status("KILLED", process=self._process))
        return read_status(self._folder)


def main() -> int:
    """Follow the command line's run, with the settings on stdin, unreadable to other processes."""
    parser = argparse.ArgumentParser(prog="lmtrain.tracking.mlflow.sink")
    parser.add_argument("run_folder", type=Path)
    run_folder = cast("Path", parser.parse_args().run_folder).absolute()
    settings = json.loads(sys.stdin.read())
    process = int(settings["trainer"])
    sys.stdout = sys.stderr = RedactedStream(sys.stderr)  # the output of MLflow and its drivers goes into a file
    os.nice(NICENESS)
    threading.Thread(target=_end_after, args=(process,), daemon=True).start()
    is_complete = follow(
        run_folder,
        tracking_uri=str(settings["tracking_uri"]),
        experiment=str(settings["experiment"]),
        last_status=Trainer(process, run_folder).last_status,
        drain_seconds=float(settings["drain_seconds"]),
    )
    return 0 if is_complete else 1


def _end_after(process: int) -> None:
    # A call into a frozen server or a locked database must not keep us alive when nobody waits for us.
    while os.getppid() == process:
        time.sleep(SLICE_SECONDS)
    time.sleep(ORPHAN_LIMIT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
