"""Track a run in MLflow without waiting for it, by a process next to the training."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from typing_extensions import override

from lmtrain.accounting.options.ranges import require_number
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import python_command
from lmtrain.tracking.following import AT_ONCE_SECONDS, Tracking
from lmtrain.tracking.machine import start_process_aside
from lmtrain.tracking.mlflow.client import Store, check_uri, default_uri, open_client, remember_server
from lmtrain.tracking.mlflow.sink import SinkState, read_state, write_state
from lmtrain.tracking.redaction import redact, redact_text
from lmtrain.tracking.run_folder import RunFolder, shown_path
from lmtrain.tracking.status import Status, StatusName

STARTING_SECONDS: Final = 45.0  # importing MLflow takes 3 to 8 seconds, and creating a new store's tables as long again


class MlflowTracking(Tracking):
    """Track runs in MLflow; tracking_uri None is an SQLite file next to the runs, without a server."""

    def __init__(
        self, *, tracking_uri: TypedAlone[str | None] = None, experiment: str = "lmtrain", drain_seconds: float = 10.0
    ) -> None:
        check_uri(tracking_uri)
        require_number("logger.drain_seconds", drain_seconds, at_least=0, usual="10")
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.drain_seconds = drain_seconds

    @override
    def start(self, run_folder: RunFolder) -> None:
        """Mark the run as going on, and start the process that sends it."""
        super().start(run_folder)
        uri = self.tracking_uri or default_uri(run_folder.root)
        remember_server(uri)
        run_folder.note({"mlflow": redact({"tracking_uri": uri, "experiment": self.experiment})})
        write_state(run_folder.path, SinkState(run_id=read_state(run_folder.path).run_id))
        settings = {"tracking_uri": uri, "experiment": self.experiment, "drain_seconds": self.drain_seconds}
        log = (run_folder.attempts() or [run_folder.path])[-1] / "mlflow.log"
        command = python_command("-m", "lmtrain.tracking.mlflow.sink", str(run_folder.path))
        self._process = start_process_aside(command, log=log, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with self._process.stdin as stdin:  # not the command line, which others can read
            stdin.write(json.dumps({**settings, "trainer": os.getpid()}).encode())

    @override
    def finish(self, status: Status, *, at_once: bool = False) -> bool:
        """Write how the run ended, and wait for the rest to be sent, drain_seconds at most once the process is up.

        `at_once` waits AT_ONCE_SECONDS at most: the process then goes on alone, for a minute at most.
        """
        super().finish(status)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(AT_ONCE_SECONDS if at_once else STARTING_SECONDS + self.drain_seconds)
        if at_once and self._process.returncode is None:
            return False
        self._process.kill()
        is_complete = self._process.wait() == 0
        super().finish(status)  # with the id of the run there
        if not is_complete:
            state = read_state(self._folder.path)
            reason = f" ({state.error})" if state.error else ""
            rest = f"Nothing is lost; send the rest with: lmtrain sync {shown_path(self._folder.path)}"
            sys.stderr.write(f"MLflow lacks a part of this run{reason}. {rest}\n")
        return is_complete

    @override
    def finish_sweep(self, folder: Path, sweep: str, *, root: Path, status: StatusName = "FINISHED") -> None:
        """Give a sweep's parent run its results and last state; a failure costs a line on stderr."""
        store = Store(root.absolute(), self.tracking_uri or default_uri(root), self.experiment)
        try:
            client = open_client(store)
            from lmtrain.tracking.mlflow.run import end_sweep, open_sweep  # imports MLflow, set up by open_client

            end_sweep(client, open_sweep(client, store, sweep), folder, status=status)
        except Exception as error:  # noqa: BLE001  any of MLflow and its drivers
            reason = redact_text(f"{type(error).__name__}: {error}").strip().splitlines()[0]
            sys.stderr.write(f"MLflow still shows the sweep {sweep} as running: {reason}\n")
