"""A run has its folder to itself: no sweep, pipeline or import is in it, no run around it, and none inside."""

from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported_folder import is_imported
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE

PIPELINE_FILE: Final = "pipeline.json"


def require_own_folder(run_folder: Path, *, root: Path) -> None:
    """Refuse a run that would begin in another's folder.

    A sweep could not go on, or would count it among its own; and `lmtrain ls` of a run's folder shows that run alone.

    Raises:
        ConfigurationError: It would. A run there before goes on by its name.
    """
    if (run_folder / SWEEP_FILE).exists():
        raise _taken(run_folder, "is a sweep's folder")
    if _has_begun(run_folder):
        return
    for folder in run_folder.parents:
        if folder == root or not folder.is_relative_to(root):
            break
        if (folder / SWEEP_FILE).exists():
            raise _taken(folder, "is a sweep's folder")
        if _has_begun(folder):
            name = run_folder.relative_to(root).as_posix().replace("/", "-")
            raise ConfigurationError(f"{folder} is a run's folder and holds no other; nearest valid: run.name={name}.")
    if (run_folder / PIPELINE_FILE).exists():
        raise _taken(run_folder, "is a pipeline's folder")
    if is_imported(run_folder):
        raise _taken(run_folder, "is an imported folder")
    if inside := next(run_folder.rglob("status.json"), None):
        raise _taken(run_folder, f"holds other runs, as {inside.parent}")


def require_pipeline_folder(folder: Path) -> None:
    """Refuse a pipeline that would begin in the folder of a run or a sweep.

    Raises: ConfigurationError.
    """
    for is_taken, what in ((_has_begun(folder), "run"), ((folder / SWEEP_FILE).exists(), "sweep")):
        if is_taken:
            raise ConfigurationError(f"{folder} is a {what}'s folder; give the pipeline another run.name.")


def _taken(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{folder} {why}; give the run another run.name.")


def _has_begun(folder: Path) -> bool:
    return (folder / "run.json").exists() or (folder / "status.json").exists()
