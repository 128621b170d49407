"""Where a run came from: package versions, host, Python.

Never the environment's variables: they hold secrets.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.measured import Measurements, measurements_from_json
from lmtrain.child_process import python_environment
from lmtrain.storage.durable import open_inside
from lmtrain.tracking.atomic_files import read_json, write_json


def describe_versions() -> dict[str, str]:
    """Return the version of every installed package, sorted by name."""
    from importlib.metadata import distributions  # brings the e-mail package along

    found = {each.name.lower(): each.version for each in distributions() if each.name}
    return dict(sorted(found.items()))


def describe_environment() -> dict[str, object]:
    """Return the host, its processor and Python, as plain data."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "folder": str(Path.cwd()),
        "process": os.getpid(),
    }


FILE: Final = "doctor.json"


def read_measurements(cache: Path) -> Measurements:
    """Return this machine's earlier measurements; nothing without a file."""
    return measurements_from_json(read_json(cache / FILE))


def write_measurements(cache: Path, measurements: Measurements) -> Path:
    """Keep measurements and return their file."""
    cache.mkdir(parents=True, exist_ok=True)
    write_json(cache / FILE, measurements.to_json())
    return cache / FILE


# A run's own place among its ranks: nothing that is started beside it belongs there.
RANKS: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def start_process_aside(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    """Start a command in a separate session, with its output at the end of `log` and more of an environment.

    Raises:
        OSError: The process or its log cannot be made.
    """
    own = {name: value for name, value in python_environment().items() if name not in RANKS} | dict(environment or {})
    descriptor = open_inside(log.parent, log.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with os.fdopen(descriptor, "ab") as file:
        return subprocess.Popen([*command], stdin=stdin, stdout=file, stderr=file, env=own, start_new_session=True)
