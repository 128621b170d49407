"""The run folders named on a command line."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import is_imported
from lmtrain.report.runs.nearest import nearest_words, of_folder, runs_in
from lmtrain.tracking.run_folder import stored_name
from lmtrain.tracking.sweep_file import read_sweep


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
        raise ConfigurationError(f"{path} holds {len(found)} runs; name one of them, as {of_folder(path)}.")
    return found[0]


def names_apart(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the runs' names; those of one name have as many of the folders around them as tell them apart."""
    own = {folder: stored_name(folder) for folder in folders}
    counts = Counter(own.values())
    return {folder: name if counts[name] == 1 else _shortest_end(folder, folders) for folder, name in own.items()}


def _shortest_end(folder: Path, folders: Sequence[Path]) -> str:
    """Return the fewest last parts of a folder's path in which no other ends."""
    for number in range(1, len(folder.parts)):
        end = folder.parts[-number:]
        if not any(other.parts[-number:] == end for other in folders if other != folder):
            return str(Path(*end))
    return str(folder)


def _runs_of(path: Path) -> list[Path]:
    if (path / "status.json").exists():
        return [path]
    read_sweep(path)  # refuses one of another version
    below = runs_in(path)
    if not below:
        what = "is an imported folder and holds no run" if is_imported(path) else "holds no run"
        raise ConfigurationError(
            f"{path} {what}; give a run's folder, as runs/NAME, a folder with runs below it, or runs/sweep-ID "
            f"of a sweep.{nearest_words(path, takes_folders=True)}"
        )
    return below
