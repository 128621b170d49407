"""The place where a run left another one: `fork.json` in its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.run_folder import shown_path

NAME: Final = "fork.json"


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Another run's checkpoint, the start of a fork.

    `is_gone` where the other run is not found there, even if a newer one has its name.
    """

    checkpoint: Path
    step: int
    is_gone: bool = False

    @property
    def run(self) -> str:
        """Return the other run's folder, as typed from here where it lies below."""
        folder = self.checkpoint.parents[1] if len(self.checkpoint.parents) > 1 else self.checkpoint
        return str(shown_path(folder))

    @property
    def run_words(self) -> str:
        """Name the other run, and say where it is gone."""
        return f"{self.run}, no longer there" if self.is_gone else self.run

    @property
    def kept_checkpoint(self) -> Path | None:
        """Return the checkpoint, None if it was removed."""
        return self.checkpoint if not self.is_gone and self.checkpoint.is_dir() else None

    def starts_at(self, place: Path) -> bool:
        """Return whether a place is the checkpoint or its run."""
        return place.resolve() in (self.checkpoint, *self.checkpoint.parents[1:2])


def write_fork(run_folder: Path, fork: Fork) -> None:
    """Note in a run's folder where it left another one, and that one's identity."""
    checkpoint = fork.checkpoint.resolve()
    of_run = {"run": _identity(checkpoint.parents[1])} if len(checkpoint.parents) > 1 else {}
    write_json(run_folder / NAME, {"checkpoint": str(checkpoint), "step": fork.step, **of_run})


def read_fork(run_folder: Path) -> Fork | None:
    """Return where a run left another one, or None."""
    try:
        noted = foreign_json.read(run_folder / NAME)
    except (FileNotFoundError, NotADirectoryError):  # a file in the way is refused where the folder is made
        return None
    checkpoint, step = Path(noted["checkpoint"]), int(noted["step"])
    if len(checkpoint.parents) < 2:  # anybody's file
        return Fork(checkpoint=checkpoint, step=step, is_gone=True)
    run, identity = checkpoint.parents[1], noted.get("run")  # an older file has no identity
    is_there = run.is_dir() if identity is None else _identity(run) == identity
    return Fork(checkpoint=checkpoint, step=step, is_gone=not is_there)


def _identity(run: Path) -> object:
    try:
        return read_json(run / "run.json").get("run")
    except EnvironmentProblem:  # a folder of somebody else
        return None
