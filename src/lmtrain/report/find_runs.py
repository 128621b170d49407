"""The run folders named on a command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, did_you_mean, suggest_path
from lmtrain.interop.imported_folder import is_imported
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE
from lmtrain.tracking.sweep_file import read_sweep

RUNS: Final = "runs"  # run.root by default
OF_RUNS: Final = "*/status.json"
DEEPEST: Final = 3  # folders between a file of a checkpoint and its run
NEARBY: Final = (OF_RUNS, "*/*/status.json")  # of runs and sweeps beside a mistyped one


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders of paths: a run, a folder with runs below it, or runs/sweep-ID of a sweep.

    Raises:
        ConfigurationError: A path names no run.
        DataError: A sweep's file is of another version, or not whole.
    """
    return list(dict.fromkeys(run for path in paths for run in _runs_of(path.absolute())))


def find_run(path: Path) -> Path:
    """Return the folder of the one run named by a path.

    Raises:
        ConfigurationError: It names no run, or several.
        DataError: It is a sweep of another version.
    """
    found = find_runs([path])
    if len(found) > 1:
        newest = max(found, key=lambda run: (run / "status.json").stat().st_mtime)
        inside = newest.is_relative_to(path.absolute())
        shown = path / newest.relative_to(path.absolute()) if inside else path.parent / newest.name
        raise ConfigurationError(f"{path} holds {len(found)} runs; name one of them, as {shown}.")
    return found[0]


def nearest_run(path: Path, patterns: Sequence[str] = NEARBY) -> str:
    """Return " Did you mean 'x'?" for a mistyped run beside a path, runs/a for a or a file of it; "" for none."""
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    below = path.parent / RUNS / path.name
    for run in (*path.parents[:DEEPEST], below):
        if (run / "status.json").exists():
            return did_you_mean([str(run)])
    known = {file.relative_to(path.parent).parts[0] for pattern in patterns for file in path.parent.glob(pattern)}
    return suggest_path(path, known - {path.name})


def names_sweep(path: Path) -> bool:
    """Tell whether a path is a sweep's: a folder with sweep.json, or runs/sweep-ID of one without a folder."""
    return (path / SWEEP_FILE).exists() or (not path.exists() and path.name.startswith("sweep-"))


def _runs_of(path: Path) -> list[Path]:
    if (path / "status.json").exists():
        return [path]
    read_sweep(path)  # refuses one of another version
    below = _runs_below(path) if path.is_dir() else []
    if names_sweep(path) and not below:
        below = [run for run in _runs_below(path.parent) if read_json(run / "run.json").get("sweep") == path.name]
    if not below:
        what = "is an imported folder and holds no run" if is_imported(path) else "holds no run"
        raise ConfigurationError(
            f"{path} {what}; give a run's folder, as runs/NAME, a folder with runs below it, or runs/sweep-ID "
            f"of a sweep.{nearest_run(path)}"
        )
    return below


def _runs_below(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.rglob("status.json") if "checkpoints" not in file.parts)
