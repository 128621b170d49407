"""The state of a run in people's words: a pruner's stop looks to the run itself like anybody's."""

from pathlib import Path
from typing import Final

from lmtrain.errors import DataError
from lmtrain.tracking.status import Status
from lmtrain.tracking.sweep_file import read_sweep

PRUNED: Final = "PRUNED"


def shown_state(folder: Path, status: Status) -> str:
    """Return a run's state, PRUNED where its search has stopped it."""
    return PRUNED if status.is_clean_stop and _is_pruned(folder) else status.shown


def _is_pruned(folder: Path) -> bool:
    try:
        sweep = read_sweep(folder.parent)
    except DataError:  # the sweep's own readers tell
        return False
    trials = sweep.trials if sweep else []
    return any(trial.state == "pruned" and folder.name in {run.folder for run in trial.runs} for trial in trials)
