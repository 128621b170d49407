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
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, open_client, remember_server
from lmtrain.tracking.mlflow.sink import read_state, write_state
from lmtrain.tracking.redaction import redact, redact_text
from lmtrain.tracking.run_folder import RunFolder, shown_path
from lmtrain.tracking.status import Close, Status, StatusName, Tracked, close_run, no_files, write_status

STARTING_SECONDS = 45.0  # importing MLflow takes 3 to 8 seconds, and creating the tables of a new store as long again
AT_ONCE_SECONDS = 2.0  # for MLflow, where somebody waits for a stop; its process then goes on alone
POLL_SECONDS = 0.05


class MlflowTracking:
    """Track runs in MLflow; tracking_uri None is an SQLite file next to the runs, without a server."""

    def __init__(
        self, *, tracking_uri: TypedAlone[str | None] = None, experiment: str = "lmtrain", drain_seconds: float = 10.0
    ) -> None:
        check_uri(tracking_uri)
        if drain_seconds < 0:
            raise ConfigurationError(f"logger.drain_seconds={drain_seconds} must be 0 or more; nearest valid: 0.")
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.drain_seconds = drain_seconds

    def start(self, run_folder: RunFolder) -> "MlflowHandle":
        """Mark the run as going on, and begin to send it; to be called by one rank, after start_attempt."""
        write_status(run_folder.path, Status("RUNNING"))
        uri = self.tracking_uri or default_uri(run_folder.root)
        remember_server(uri)
        run_folder.note({"mlflow": redact({"tracking_uri": uri, "experiment": self.experiment})})
        write_state(run_folder.path, replace(read_state(run_folder.path), phase="starting", error=None))
        settings = {"tracking_uri": uri, "experiment": self.experiment, "drain_seconds": self.drain_seconds}
        return MlflowHandle(run_folder, _start_sink(run_folder, settings), drain_seconds=self.drain_seconds)

    def finish_sweep(self, root: Path, sweep: str, *, status: StatusName = "FINISHED") -> None:
        """Give a sweep's parent run its last state; a dead server costs a line on stderr.

        The state of a stopped sweep is sent by a separate process, not waited for beyond AT_ONCE_SECONDS.
        """
        if status == "KILLED":
            settings = {"root": str(root), "sweep": sweep, "status": status}
            more = {"tracking_uri": self.tracking_uri, "experiment": self.experiment}
            with contextlib.suppress(subprocess.TimeoutExpired):
                _start_process(["lmtrain.tracking.mlflow.tracking"], {**settings, **more}).wait(AT_ONCE_SECONDS)
            return
        from lmtrain.tracking.mlflow.tracking import finish_sweep  # imports MLflow: seconds

        try:
            finish_sweep(root, sweep, tracking_uri=self.tracking_uri, experiment=self.experiment, status=status)
        except Exception as error:  # noqa: BLE001  any error of MLflow and its drivers; the trials are stored anyway
            sys.stderr.write(f"MLflow still shows the sweep {sweep} as running: {redact_text(str(error))}\n")


class MlflowHandle:
    """A run under way to MLflow."""

    def __init__(self, run_folder: RunFolder, process: "subprocess.Popen[bytes]", *, drain_seconds: float) -> None:
        self._folder = run_folder
        self._process = process
        self._drain_seconds = drain_seconds

    def finish(self, status: Status, *, at_once: bool = False, close: Close = no_files) -> Tracked:
        """Write how the run ended and wait for the rest to be sent, drain_seconds at most once the sink is up.

        `at_once` waits AT_ONCE_SECONDS at most: the sink then goes on alone, for a minute at most. `close` writes the
        last files, which are sent too.
        """
        close_run(self._folder.path, status, close)
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
            sys.stderr.write(_advice(self._folder.path, state.error))
        return Tracked(run_id=state.run_id, is_complete=code == 0)

    def _wait_for_sink(self) -> None:
        now = time.monotonic()
        started_by = now + STARTING_SECONDS
        deadline = now + self._drain_seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            if read_state(self._folder.path).phase == "starting":
                deadline = min(time.monotonic(), started_by) + self._drain_seconds


def _start_sink(run_folder: RunFolder, settings: Mapping[str, object]) -> "subprocess.Popen[bytes]":
    attempts = run_folder.attempts()
    log_path = (attempts[-1] if attempts else run_folder.path) / "mlflow.log"
    descriptor = open_inside(log_path.parent, log_path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(descriptor, "ab") as log:
        words = ["lmtrain.tracking.mlflow.sink", str(run_folder.path)]
        return _start_process(words, {**settings, "trainer": os.getpid()}, log=log)


def _start_process(
    words: list[str], settings: Mapping[str, object], *, log: IO[bytes] | int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """Start a module, to outlive us if it must, with its settings on stdin, unreadable to other processes."""
    command = python_command("-m", *words)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=python_environment(), start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    return process


def _advice(folder: Path, error: str | None) -> str:
    shown = shown_path(folder)
    reason = f" ({error})" if error else ""
    return f"MLflow lacks a part of this run{reason}. Nothing is lost; send the rest with: lmtrain sync {shown}\n"


LIMIT_SECONDS: Final = 60


def finish_sweep(
    root: Path,
    sweep: str,
    *,
    tracking_uri: str | None = None,
    experiment: str = "lmtrain",
    status: StatusName = "FINISHED",
) -> str:
    """Give a sweep its last state and return the id of its run in MLflow.

    MLflow's errors pass through; the sweep's trials are stored without it.
    """
    check_uri(tracking_uri)
    store = Store(root.absolute(), tracking_uri or default_uri(root), experiment)
    client = open_client(store)
    from lmtrain.tracking.mlflow.run import open_sweep  # imports MLflow, after open_client has set it up

    run_id = open_sweep(client, store, sweep)
    client.set_terminated(run_id, status=status, end_time=int(time.time() * 1000))
    return run_id


def main() -> None:
    """End the sweep named on stdin, with the arguments of `finish_sweep`."""
    settings = json.loads(sys.stdin.read())
    signal.alarm(LIMIT_SECONDS)  # a call into a frozen server is given up
    finish_sweep(Path(settings.pop("root")), settings.pop("sweep"), **settings)


if __name__ == "__main__":
    main()
