"""Checkpoints waiting to be scored: hard links in RUN/held/step_N, so that their run may delete its own.

The process that scores one first renames it to scoring_N, and the run that gives one up renames it too: one alone can.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from lmtrain.storage.durable import rename_durably

FOLDER: Final = "held"
WAITING: Final = "step_"
SCORING: Final = "scoring_"
LOCK: Final = ".lock"  # of the process that scores


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
    """Return the places of checkpoints that nothing scores yet, oldest first."""
    return sorted((run / FOLDER).glob(f"{WAITING}*"))


def held(run: Path) -> list[Path]:
    """Return the places of all held checkpoints, oldest first."""
    return sorted([*waiting(run), *(run / FOLDER).glob(f"{SCORING}*")], key=step_of)


def step_of(place: Path) -> int:
    """Return the optimizer step of a held checkpoint."""
    return int(place.name.rpartition("_")[2])


def begin_scoring(place: Path) -> Path | None:
    """Take a waiting checkpoint and return its new place; None where it is gone."""
    try:
        return place.rename(place.with_name(f"{SCORING}{step_of(place):08d}"))
    except FileNotFoundError:
        return None


def put_back(run: Path) -> None:
    """Let the checkpoint that a killed process was scoring wait again."""
    for place in (run / FOLDER).glob(f"{SCORING}*"):
        place.rename(place.with_name(f"{WAITING}{step_of(place):08d}"))


def release(place: Path) -> bool:
    """Let a held checkpoint go, in one rename: a part of one is never waiting; return whether it was there."""
    gone = place.with_name(f".{place.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        place.rename(gone)
    except FileNotFoundError:
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True
