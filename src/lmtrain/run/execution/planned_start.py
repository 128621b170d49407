"""The start of a planned run: the checkpoint that its training would go on from, read but not verified."""

from typing import Any

from lmtrain.accounting.budgets import Horizon
from lmtrain.run.planning.plan import FROM_THE_START, PlannedStart
from lmtrain.run.planning.prepared_tokens import known_data
from lmtrain.run.stored_runs.identity import identity_of_settings, with_settings
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.resume import find_checkpoint, nothing_left, phases_read, run_so_far
from lmtrain.tracking.run_folder import shown_path
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts


def planned_start(job: Job) -> PlannedStart:
    """Return the start of a job, as its training finds it.

    Raises:
        ConfigurationError: `resume` asks for a checkpoint that is not there, or of other settings or other data.
    """
    checkpoint = find_checkpoint(job, verifies=False)
    if checkpoint is None:
        return FROM_THE_START
    data = known_data(job.config)
    _require_same(job, checkpoint, data)
    done = run_so_far(job, checkpoint)
    goes_on = f"goes on from {shown_path(checkpoint.path)}: FLOPs, time and money are those of the steps ahead"
    if not data:
        goes_on += "; its data is to be the checkpoint's, which is seen once it is opened"

    def left(horizon: Horizon) -> str:
        spent = done.spent(horizon.time_limit)
        return nothing_left(horizon, checkpoint, folder=job.folder, spent_seconds=spent) or goes_on

    return PlannedStart(done=done, left=left, read=phases_read(checkpoint))


def _require_same(job: Job, checkpoint: CheckpointFacts, data: dict[str, Any]) -> None:
    """Refuse a checkpoint of a run of other settings, or of other data where it is known."""
    here = with_settings(checkpoint.identity, {**identity_of_settings(job.config), **data})
    if here != checkpoint.identity:
        from lmtrain.run.stored_runs.identity import allowed_changes  # where they differ

        allowed_changes(here, job, checkpoint)
