"""The run folders named on a command line."""

from collections.abc import Sequence
from pathlib import Path

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders of paths: a run, a folder with runs below it, or runs/sweep-ID of a sweep.

    Raises:
        ConfigurationError: A path names no run.
    """
    return list(dict.fromkeys(run for path in paths for run in _runs_of(path.absolute())))


def names_sweep(path: Path) -> bool:
    """Tell whether a path is a sweep's: a folder with sweep.json, or runs/sweep-ID of one without a folder."""
    return (path / SWEEP_FILE).exists() or (not path.exists() and path.name.startswith("sweep-"))


def _runs_of(path: Path) -> list[Path]:
    if (path / "status.json").exists():
        return [path]
    below = _runs_below(path) if path.is_dir() else []
    if names_sweep(path) and not below:
        below = [run for run in _runs_below(path.parent) if read_json(run / "run.json").get("sweep") == path.name]
    if not below:
        known = [run.name for run in path.parent.glob("*") if run.is_dir()] if path.parent.is_dir() else []
        raise ConfigurationError(
            f"{path} holds no run; give a run's folder, as runs/NAME, a folder with runs below it, or runs/sweep-ID "
            f"of a sweep.{suggest(path.name, known)}"
        )
    return below


def _runs_below(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.rglob("status.json") if "checkpoints" not in file.parts)
