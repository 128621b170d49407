"""How a run is doing, in status.json: written by the trainer at the start and the end, read by everything else."""

import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, cast, get_args

from lmtrain.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_REQUEUE, EXIT_TERMINATED
from lmtrain.tracking import atomic_files
from lmtrain.tracking.atomic_files import is_held

CLEAN_STOPS: Final = (EXIT_REQUEUE, EXIT_INTERRUPTED, EXIT_TERMINATED)
StatusName = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]


@dataclass(frozen=True)
class Status:
    """One state of a run; exit_code is None while it runs, process is the trainer's process id.

    `is_closing`: it has ended, and its process still writes its report. `reason` is a failure's, in its own words.
    """

    status: StatusName
    exit_code: int | None = None
    step: int | None = None
    tokens: int | None = None
    mlflow_run_id: str | None = None
    sweep: str | None = None
    process: int | None = None
    time: float | None = None
    is_closing: bool | None = None
    reason: str | None = None

    @property
    def is_clean_stop(self) -> bool:
        """Return whether it was stopped from outside after a whole step, and goes on by the same command."""
        return self.status == "KILLED" and self.exit_code in CLEAN_STOPS

    @property
    def shown(self) -> str:
        """Return the state in people's words: a clean stop is not a kill."""
        return "STOPPED" if self.is_clean_stop else self.status


def status_name(exit_code: int) -> StatusName:
    """Name an exit code's state: 0 FINISHED; stopped from outside KILLED; all else FAILED."""
    if exit_code == EXIT_DONE:
        return "FINISHED"
    return "KILLED" if exit_code in (*CLEAN_STOPS, 137) else "FAILED"


def read_status(folder: Path) -> Status | None:
    """Return the state of the run in a folder, None when it was never started."""
    row = atomic_files.read_json(folder / "status.json")
    if row.get("status") not in get_args(StatusName):
        return None
    known = {name: row.get(name) for name in Status.__dataclass_fields__}
    return Status(**cast("dict[str, int]", known))  # pyright: ignore[reportArgumentType]


def write_status(folder: Path, status: Status) -> None:
    """Replace status.json; the time, the MLflow run and the sweep are filled in where status leaves them open."""
    row = asdict(status)
    row["time"] = time.time() if status.time is None else status.time
    row["process"] = os.getpid() if status.process is None else status.process
    row["mlflow_run_id"] = status.mlflow_run_id or atomic_files.read_json(folder / "mlflow_state.json").get("run_id")
    row["sweep"] = status.sweep or atomic_files.read_json(folder / "run.json").get("sweep")
    atomic_files.write_json(folder / "status.json", row)


def settled_status(folder: Path) -> Status | None:
    """Return a run's state, KILLED if it reads RUNNING and no process holds the run; None without a run."""
    status = read_status(folder)
    if status is None or status.status != "RUNNING" or status.process == os.getpid():
        return status
    return status if is_held(folder / ".lock") else replace(status, status="KILLED")
