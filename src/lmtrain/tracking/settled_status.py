"""A run's true state, also if a killed run could not write its end."""

import os
from dataclasses import replace
from pathlib import Path

from lmtrain.tracking.file_lock import is_held
from lmtrain.tracking.status import Status, read_status


def settled_status(folder: Path) -> Status | None:
    """Return a run's state, KILLED if it reads RUNNING and no process holds the run; None without a run."""
    status = read_status(folder)
    if status is None or status.status != "RUNNING" or status.process == os.getpid():
        return status
    return status if is_held(folder / ".lock") else replace(status, status="KILLED")
