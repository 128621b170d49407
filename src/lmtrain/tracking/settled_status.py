"""A run's true state, also where a killed run could not write its end."""

import os
from dataclasses import replace
from pathlib import Path

from lmtrain.errors import EnvironmentProblem
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.status import Status, read_status


def settled_status(folder: Path) -> Status | None:
    """Return a run's state, KILLED where it reads RUNNING and no process holds the run; None without a run.

    A read-only folder has no known holder: there the state stays as it reads.
    """
    status = read_status(folder)
    if status is None or status.status != "RUNNING" or status.process == os.getpid():
        return status
    try:
        with RunFolder(folder).lock(wait_seconds=0.0):
            return replace(status, status="KILLED")
    except EnvironmentProblem:
        return status
