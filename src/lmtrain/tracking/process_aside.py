"""Start a process beside a run that outlives it and is waited for by nobody."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lmtrain.child_process import python_environment

# A run's own place among its ranks: nothing that is started beside it belongs there.
RANKS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def start_process_aside(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a command in a session of its own, with its words at the end of `log` and more of an environment.

    Raises:
        OSError: There is no process or no file for it.
    """
    own = {name: value for name, value in python_environment().items() if name not in RANKS} | dict(environment or {})
    with log.open("ab") as file:
        return subprocess.Popen(
            [*command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=own, start_new_session=True
        )
