"""The file of this machine's measurements, beside the compile caches."""

from pathlib import Path
from typing import Final

from lmtrain.accounting.observed.measured import Measurements, measurements_from_json
from lmtrain.tracking.atomic_files import read_json, write_json

FILE: Final = "doctor.json"


def read_measurements(cache: Path) -> Measurements:
    """Return this machine's earlier measurements; nothing where there is no file."""
    return measurements_from_json(read_json(cache / FILE))


def write_measurements(cache: Path, measurements: Measurements) -> Path:
    """Keep measurements and return their file.

    Raises:
        EnvironmentProblem: The folder cannot be written.
    """
    cache.mkdir(parents=True, exist_ok=True)
    write_json(cache / FILE, measurements.to_json())
    return cache / FILE
