"""Find the run folders that paths name, or the run nearest to a path that names none."""

import difflib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, did_you_mean
from lmtrain.interop.folders import is_imported
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import shown_path, stored_name
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE
from lmtrain.tracking.sweep_file import read_sweep

RUNS: Final = Path("runs")  # run.root by default
DEEPEST: Final = 3  # folders between a file of a checkpoint and its run
MOST_TRIED: Final = 20  # similar names that are tried


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders of paths: a run, a folder with runs below it, or runs/sweep-ID of a sweep."""
    return list(dict.fromkeys(run for path in paths for run in _runs_of(path.absolute())))


def find_run(path: Path) -> Path:
    """Return the folder of the one run that a path names."""
    found = find_runs([path])
    if len(found) > 1:
        raise ConfigurationError(f"{path} holds {len(found)} runs; name one of them, for example {nearest_run(path)}.")
    return found[0]


def _runs_of(path: Path) -> list[Path]:
    if has_status(path):
        return [path]
    read_sweep(path)  # refuses a sweep of another version
    below = runs_in(path)
    if not below:
        what = "is an imported folder and holds no run" if is_imported(path) else "holds no run"
        raise ConfigurationError(
            f"{path} {what}; give runs/NAME, a folder with runs below it, or a sweep's runs/sweep-ID."
            f"{nearest_words(path)}"
        )
    return below


def names_apart(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the runs' names; runs of the same name get their paths from the folder around all runs."""
    own = {folder: stored_name(folder) for folder in folders}
    counts = Counter(own.values())
    around = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    return {folder: name if counts[name] == 1 else os.path.relpath(folder, around) for folder, name in own.items()}


def has_status(folder: Path) -> bool:
    """Report whether a folder is a run's: it has a status.json."""
    return (folder / "status.json").exists()


def has_checkpoint(run: Path) -> bool:
    """Report whether a run has saved a checkpoint, even a damaged one."""
    return any((run / "checkpoints").glob("step_*"))


def names_sweep(path: Path) -> bool:
    """Report whether a path is a sweep's: a folder with sweep.json, or runs/sweep-ID of a sweep without a folder."""
    return (path / SWEEP_FILE).exists() or (not path.exists() and path.name.startswith("sweep-"))


def runs_in(path: Path) -> list[Path]:
    """Return the runs below a folder, or those of a sweep without a folder."""
    below = _runs_below(path) if path.is_dir() else []
    if names_sweep(path) and not below:
        return [run for run in _runs_below(path.parent) if read_json(run / "run.json").get("sweep") == path.name]
    return below


def _runs_below(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.rglob("status.json") if "checkpoints" not in file.parts)


def nearest_run(path: Path, *, is_run: Callable[[Path], bool] = has_status) -> Path | None:
    """Return the run that a path probably means: of a file in it, the newest in it, or of a similar name near it."""
    path = shown_path(path)
    around = (*path.parents[:DEEPEST], path.parent / RUNS / path.name)
    if run := next((each for each in around if is_run(each)), None):
        return run
    if below := [run for run in runs_in(path.absolute()) if is_run(run)]:
        return shown_path(max(below, key=lambda run: (has_checkpoint(run), (run / "status.json").stat().st_mtime)))
    for root in dict.fromkeys((path.parent, RUNS)):
        names = [each.name for each in root.iterdir() if each.is_dir() and each != path] if root.is_dir() else []
        for name in difflib.get_close_matches(path.name, names, n=MOST_TRIED):
            if os.access(root / name, os.R_OK | os.X_OK) and is_run(root / name):
                return root / name
    return None


def nearest_words(path: Path) -> str:
    """Return " Did you mean 'x'?" with the nearest run, nothing without one."""
    near = nearest_run(path)
    return did_you_mean([str(near)] if near else [])
