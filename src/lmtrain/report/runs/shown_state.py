"""The state of a run in people's words: a pruner's stop looks to the run itself like anybody's."""

from pathlib import Path
from typing import Final

from lmtrain.errors import DataError
from lmtrain.tracking.status import Status
from lmtrain.tracking.sweep_file import SweepTrial, read_sweep

PRUNED: Final = "PRUNED"


def shown_state(folder: Path, status: Status) -> str:
    """Return a run's state, PRUNED where its search has stopped it."""
    trial = trial_of(folder) if status.is_clean_stop else None
    return PRUNED if trial and trial.state == "pruned" else status.shown


def trial_of(folder: Path) -> SweepTrial | None:
    """Return the trial of a search that a run in its folder belongs to, None for another run."""
    try:
        sweep = read_sweep(folder.parent)
    except DataError:  # the sweep's own readers tell
        return None
    found = (trial for trial in (sweep.trials if sweep else []) for run in trial.runs if run.folder == folder.name)
    return next(found, None)
