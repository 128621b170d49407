"""The answer to a path of a checkpoint that a run does not have: those kept, and the nearest."""

import re
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, list_checkpoints

CHECKPOINTS: Final = "checkpoints"  # a run's folder of them
MOST_NAMED: Final = 4  # checkpoints in one message
DEEPEST: Final = 3  # folders between a file of a checkpoint and the run's checkpoints


def not_kept(path: Path, *, key: str) -> ConfigurationError | None:
    """Return the refusal of a path in or beside a run's checkpoints; None elsewhere, and of a run without any.

    `key` is the path's name on the command line.
    """
    folder, name = _place(path)
    kept = list_checkpoints(folder)
    if not kept:
        return None
    asked = int(digits[0]) if (digits := re.search(r"\d+$", name)) else kept[-1].step
    by_distance: list[CheckpointFacts] = sorted(kept, key=lambda facts: abs(facts.step - asked))
    near = sorted(facts.path.name for facts in by_distance[:MOST_NAMED])
    why = "no checkpoint" if path.exists() else "not there: never saved, or removed by callbacks.checkpoint.keep_last"
    return ConfigurationError(
        f"{key}={path} is {why}; {folder.parent} has {', '.join(near)}; nearest valid: {key}={by_distance[0].path}."
    )


def _place(path: Path) -> tuple[Path, str]:
    """Return the folder of checkpoints meant by a path, and the checkpoint's name in it."""
    below = ""
    for folder in (path, *path.parents[:DEEPEST]):
        if folder.name == CHECKPOINTS:
            return folder, below
        below = folder.name
    return path.parent / CHECKPOINTS, path.name  # RUN/step_00000005
