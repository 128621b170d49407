"""The checkpoints to keep once a new one is written: the last few and the best."""

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoints import best_of, list_checkpoints
from lmtrain.training.held_out_scores import HeldOutScores

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Delete all but the `keep_last` newest and, with `keep_best`, the best by the metric of the run's `scores`."""

    keep_last: int
    keep_best: bool
    scores: HeldOutScores = field(default_factory=HeldOutScores)

    def after(self, new: Path) -> None:
        """Delete the unwanted ones beside a new, whole checkpoint.

        Raises:
            EnvironmentProblem: It is not; everything older stays.
        """
        checkpoints = list_checkpoints(new.parent)
        best = best_of(checkpoints, metric=self.scores.metric) if self.keep_best else None
        unwanted = [facts.path for facts in checkpoints[: -self.keep_last] if facts != best]
        if unwanted and (problem := damage(new)):
            raise EnvironmentProblem(f"{new} was written, but {problem}; older checkpoints are kept.")
        for path in unwanted:
            _delete(path)


@dataclass(frozen=True, kw_only=True)
class WriteAndRetain:
    """Write a checkpoint, then delete the ones it replaces."""

    write: Callable[[], int]
    path: Path
    retention: Retention

    def __call__(self) -> int:
        """Return the bytes written."""
        num_bytes = self.write()
        self.retention.after(self.path)
        return num_bytes


def set_aside_after(folder: Path, step: int) -> None:
    """Rename checkpoints of later steps: they belong to an abandoned course of this run."""
    for path in folder.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and int(number) > step:
            left = path.with_name(f"left_{path.name}_{time.time_ns()}")
            path.rename(left)
            _LOG.warning("Checkpoint %s is of a later step than the one resumed from; it is now %s.", path, left.name)


def _delete(path: Path) -> None:
    """Delete a checkpoint; a crash on the way leaves nothing like one."""
    hidden = path.with_name(f".{path.name}.deleting")
    try:
        path.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as problem:
        _LOG.warning("Old checkpoint %s could not be deleted: %s", path, problem)
