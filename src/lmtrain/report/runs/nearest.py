"""The run nearest to a path that names none, for the refusal of that path."""

import contextlib
import difflib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from lmtrain.errors import DataError, did_you_mean
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import shown_path
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE
from lmtrain.tracking.sweep_file import read_sweep

RUNS: Final = Path("runs")  # run.root by default
DEEPEST: Final = 3  # folders between a file of a checkpoint and its run
MOST_TRIED: Final = 20  # names like the typed one, until one is a run


def has_status(folder: Path) -> bool:
    """Tell whether a folder is a run's, by its state."""
    return (folder / "status.json").exists()


def nearest_run(path: Path, *, is_run: Callable[[Path], bool] = has_status, takes_folders: bool = False) -> Path | None:
    """Return the run of a file, one of the folder's own, or one of a like name beside the path or below runs/.

    `takes_folders` tells whether a folder with runs in it, of a like name, will do. None: there is none.
    """
    path = shown_path(path)
    around = (*path.parents[:DEEPEST], path.parent / RUNS / path.name)
    if run := next((each for each in around if is_run(each)), None):
        return run
    if run := of_folder(path, is_run=is_run):
        return run
    is_name = path.parent == Path() or not path.parent.is_dir()
    for root in (path.parent, *([RUNS] if is_name else [])):
        names = [each.name for each in root.iterdir() if each.is_dir() and each != path] if root.is_dir() else []
        for name in difflib.get_close_matches(path.name, names, n=MOST_TRIED):
            near = root / name
            if os.access(near, os.R_OK | os.X_OK) and (is_run(near) or (takes_folders and _holds_run(near))):
                return near
    return None


def nearest_words(path: Path, *, takes_folders: bool = False) -> str:
    """Return " Did you mean 'x'?" of the nearest run, nothing without one."""
    near = nearest_run(path, takes_folders=takes_folders)
    return did_you_mean([str(near)] if near else [])


def of_folder(path: Path, *, is_run: Callable[[Path], bool] = has_status) -> Path | None:
    """Return a run of a sweep's or a pipeline's folder, as typed: the best one where known, else the newest trained."""
    runs = [run for run in runs_in(path.absolute()) if is_run(run)]
    found = next((run for run in runs if run == _best(path.absolute())), None) or newest_trained(runs)
    if found is None:
        return None
    inside = found.is_relative_to(path.absolute())
    return path / found.relative_to(path.absolute()) if inside else path.parent / found.name


def newest_trained(runs: Iterable[Path]) -> Path | None:
    """Return the run that changed last, of those with a checkpoint where any has one; None without a run."""
    return max(runs, key=lambda run: (has_checkpoint(run), (run / "status.json").stat().st_mtime), default=None)


def names_sweep(path: Path) -> bool:
    """Tell whether a path is a sweep's: a folder with sweep.json, or runs/sweep-ID of one without a folder."""
    return (path / SWEEP_FILE).exists() or (not path.exists() and path.name.startswith("sweep-"))


def runs_in(path: Path) -> list[Path]:
    """Return the runs below a folder, or those of a sweep without one."""
    below = _runs_below(path) if path.is_dir() else []
    if names_sweep(path) and not below:
        return [run for run in _runs_below(path.parent) if read_json(run / "run.json").get("sweep") == path.name]
    return below


def _best(sweep: Path) -> Path | None:
    with contextlib.suppress(DataError):
        found = read_sweep(sweep)
        trial = found.best_trial() if found else None
        return sweep / trial.runs[0].folder if trial and trial.runs else None
    return None


def has_checkpoint(run: Path) -> bool:
    """Tell whether a run has saved any, be it damaged."""
    return any((run / "checkpoints").glob("step_*"))


def _holds_run(folder: Path) -> bool:
    return any(folder.glob("*/status.json"))


def _runs_below(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.rglob("status.json") if "checkpoints" not in file.parts)
