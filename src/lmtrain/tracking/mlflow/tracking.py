"""Track a run in MLflow without waiting for it: settings for conf/logger, and a handle on its process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import python_command, python_environment
from lmtrain.errors import ConfigurationError
from lmtrain.storage.durable import open_inside
from lmtrain.tracking.following import AT_ONCE_SECONDS, FolderHandle, Tracking
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, open_client, remember_server
from lmtrain.tracking.mlflow.sink import read_state, write_state
from lmtrain.tracking.redaction import redact, redact_text
from lmtrain.tracking.run_folder import RunFolder, shown_path
from lmtrain.tracking.status import Close, Status, StatusName, Tracked, no_files, write_status

STARTING_SECONDS: Final = 45.0  # importing MLflow takes 3 to 8 seconds, and creating a new store's tables as long again
POLL_SECONDS: Final = 0.05
SWEEP_SECONDS: Final = 60  # a call into a frozen server is given up


class MlflowTracking(Tracking):
    """Track runs in MLflow; tracking_uri None is an SQLite file next to the runs, without a server."""

    def __init__(
        self, *, tracking_uri: TypedAlone[str | None] = None, experiment: str = "lmtrain", drain_seconds: float = 10.0
    ) -> None:
        check_uri(tracking_uri)
        if drain_seconds < 0:
            raise ConfigurationError(f"logger.drain_seconds: must be 0 or more, got {drain_seconds}.")
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.drain_seconds = drain_seconds

    def start(self, run_folder: RunFolder) -> "MlflowHandle":
        """Mark the run as going on, and begin to send it; to be called by one rank, after start_attempt."""
        uri = self.tracking_uri or default_uri(run_folder.root)
        remember_server(uri)
        run_folder.note({"mlflow": redact({"tracking_uri": uri, "experiment": self.experiment})})
        write_state(run_folder.path, replace(read_state(run_folder.path), phase="starting", error=None))
        return MlflowHandle(run_folder, tracking_uri=uri, experiment=self.experiment, drain_seconds=self.drain_seconds)

    def finish_sweep(self, folder: Path, sweep: str, *, root: Path, status: StatusName = "FINISHED") -> None:
        """Give a sweep's parent run its results and last state, in another process; its failure costs a line on stderr.

        A stopped sweep waits AT_ONCE_SECONDS at most.
        """
        settings = {"folder": str(folder), "root": str(root), "sweep": sweep, "status": status}
        process = _start_process(
            ["lmtrain.tracking.mlflow.tracking"],
            {**settings, "tracking_uri": self.tracking_uri, "experiment": self.experiment},
            log=subprocess.PIPE,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, said = process.communicate(timeout=AT_ONCE_SECONDS if status == "KILLED" else SWEEP_SECONDS)
            if process.returncode:
                reason = redact_text(said.decode(errors="replace")).strip().splitlines()[-1:]
                sys.stderr.write(f"MLflow still shows the sweep {sweep} as running: {' '.join(reason)}\n")


class MlflowHandle(FolderHandle):
    """A run under way to MLflow by its process."""

    def __init__(self, run_folder: RunFolder, *, tracking_uri: str, experiment: str, drain_seconds: float) -> None:
        super().__init__(run_folder)
        self._drain_seconds = drain_seconds
        settings = {"tracking_uri": tracking_uri, "experiment": experiment, "drain_seconds": drain_seconds}
        attempts = run_folder.attempts()
        log_path = (attempts[-1] if attempts else run_folder.path) / "mlflow.log"
        descriptor = open_inside(log_path.parent, log_path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as log:
            words = ["lmtrain.tracking.mlflow.sink", str(run_folder.path)]
            self._process = _start_process(words, {**settings, "trainer": os.getpid()}, log=log)

    def finish(self, status: Status, *, at_once: bool = False, close: Close = no_files) -> Tracked:
        """Write how the run ended and wait for the rest to be sent, drain_seconds at most once the sink is up.

        `at_once` waits AT_ONCE_SECONDS at most: the sink then goes on alone, for a minute at most. `close` writes the
        last files, which are sent too.
        """
        super().finish(status, close=close)
        if at_once:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(AT_ONCE_SECONDS)
            if self._process.returncode is None:
                return Tracked(run_id=read_state(self._folder.path).run_id, is_complete=False)
        self._wait_for_sink()
        self._process.kill()
        code = self._process.wait()
        state = read_state(self._folder.path)
        write_status(self._folder.path, replace(status, mlflow_run_id=state.run_id))
        if code != 0:
            reason = f" ({state.error})" if state.error else ""
            rest = f"Nothing is lost; send the rest with: lmtrain sync {shown_path(self._folder.path)}"
            sys.stderr.write(f"MLflow lacks a part of this run{reason}. {rest}\n")
        return Tracked(run_id=state.run_id, is_complete=code == 0)

    def _wait_for_sink(self) -> None:
        now = time.monotonic()
        started_by = now + STARTING_SECONDS
        deadline = now + self._drain_seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if read_state(self._folder.path).phase == "starting":
                deadline = min(time.monotonic(), started_by) + self._drain_seconds


def _start_process(
    words: list[str], settings: Mapping[str, object], *, log: IO[bytes] | int
) -> "subprocess.Popen[bytes]":
    """Start a module, to outlive us if it must, with its settings on stdin, unreadable to other processes."""
    process = subprocess.Popen(
        python_command("-m", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL if log == subprocess.PIPE else log,
        stderr=log,
        env=python_environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    process.stdin = None
    return process


def main() -> None:
    """Give the sweep named on stdin its last state; MLflow's errors pass through."""
    settings = json.loads(sys.stdin.read())
    signal.alarm(SWEEP_SECONDS)
    root, uri = Path(settings["root"]).absolute(), settings["tracking_uri"]
    store = Store(root, uri or default_uri(root), settings["experiment"])
    client = open_client(store)
    from lmtrain.tracking.mlflow.run import end_sweep, open_sweep  # imports MLflow, after open_client has set it up

    run_id = open_sweep(client, store, settings["sweep"])
    end_sweep(client, run_id, Path(settings["folder"]), status=settings["status"])


if __name__ == "__main__":
    main()
