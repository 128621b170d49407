"""Checkpoints waiting to be scored: hard links in RUN/held/step_N, so that their run may delete its own.

A waiting one is claimed, by the one who scores it or by the run that gives it up, through a file made once
(step_N.claimed): never both.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from lmtrain.storage.durable import rename_durably

FOLDER: Final = "held"
CLAIMED: Final = ".claimed"
LOCK: Final = ".lock"  # of the process at it


def hold(run: Path, checkpoint: Path) -> Path:
    """Keep a whole checkpoint of a run for its turn, at no bytes of the disk; return its place.

    Raises:
        OSError: The file system has no hard links, or the checkpoint is gone.
    """
    place = run / FOLDER / checkpoint.name
    aside = place.with_name(f".{place.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(checkpoint, aside, copy_function=os.link)
    release(place)
    rename_durably(aside, place)
    return place


def waiting(run: Path) -> list[Path]:
    """Return the places of checkpoints not claimed yet, oldest first."""
    return [place for place in held(run) if not _claim_file(place).exists()]


def held(run: Path) -> list[Path]:
    """Return the places of all held checkpoints, oldest first."""
    return sorted(path for path in (run / FOLDER).glob("step_*") if path.is_dir())


def step_of(place: Path) -> int:
    """Return the optimizer step of a held checkpoint."""
    return int(place.name.removeprefix("step_"))


def claim(place: Path) -> bool:
    """Take a waiting checkpoint; False where another one has."""
    try:
        os.close(os.open(_claim_file(place), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return place.is_dir()


def release(place: Path) -> None:
    """Let a held checkpoint go, in one rename: a part of one is never waiting."""
    gone = place.with_name(f".{place.name}.gone")
    with contextlib.suppress(FileNotFoundError):
        place.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    _claim_file(place).unlink(missing_ok=True)


def unclaim(run: Path) -> None:
    """Let all claims of a killed process go; the checkpoints wait again."""
    for file in (run / FOLDER).glob(f"step_*{CLAIMED}"):
        file.unlink(missing_ok=True)


def _claim_file(place: Path) -> Path:
    return place.with_name(place.name + CLAIMED)
