"""The place where a run left another one: `fork.json` in its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import write_json

NAME: Final = "fork.json"


@dataclass(frozen=True, kw_only=True)
class Fork:
    """Another run's checkpoint, the start of a fork."""

    checkpoint: Path
    step: int

    @property
    def run(self) -> str:
        """Return the other run's folder, as typed from here where it lies below."""
        folder = self.checkpoint.parents[1] if len(self.checkpoint.parents) > 1 else self.checkpoint
        return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def write_fork(run_folder: Path, fork: Fork) -> None:
    """Note in a run's folder where it left another one."""
    write_json(run_folder / NAME, {"checkpoint": str(fork.checkpoint.resolve()), "step": fork.step})


def read_fork(run_folder: Path) -> Fork | None:
    """Return where a run left another one, or None."""
    try:
        noted = foreign_json.read(run_folder / NAME)
    except (FileNotFoundError, NotADirectoryError):  # a file in the way is refused where the folder is made
        return None
    return Fork(checkpoint=Path(noted["checkpoint"]), step=int(noted["step"]))
