"""A sweep's folder is one process's at a time; a wish for its stop reaches that process from anywhere."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.tracking.atomic_files import storage_problem
from lmtrain.tracking.file_lock import file_lock, is_held, this_process
from lmtrain.tracking.stop_request import forget_stop

LOCK: Final = ".lock"
WAIT_SECONDS: Final = 5.0  # a killed process needs a moment to be gone


@contextmanager
def held_sweep(folder: Path) -> Generator[None]:
    """Make the folder and hold it for this process alone; an older wish for a stop is not meant for it.

    Raises:
        ConfigurationError: It is a run's.
        EnvironmentProblem: It cannot be written, or another process has it.
    """
    if (folder / "status.json").exists():
        raise ConfigurationError(f"{folder} is a run's folder; give the sweep another run.name.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise storage_problem(folder, problem) from problem
    refusal = (
        f"{folder} is a sweep under way in process HOLDER; wait for it, stop it (lmtrain stop), or choose another "
        "run.name."
    )
    note = f"{this_process()}\n"
    with file_lock(folder / LOCK, wait_seconds=WAIT_SECONDS, note=note, refusal=refusal):
        forget_stop(folder)
        yield


def is_under_way(folder: Path) -> bool:
    """Tell whether a process holds a sweep's folder."""
    return (folder / LOCK).exists() and is_held(folder / LOCK)
