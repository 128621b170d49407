"""The start of a planned run: the checkpoint that its training would go on from, read but not verified."""

from pathlib import Path

from lmtrain.accounting.budgets import Horizon, RunSoFar
from lmtrain.composition.planning.plan import FROM_THE_START, PlannedStart
from lmtrain.composition.stored_runs.identity import identity_of_settings, with_settings
from lmtrain.composition.stored_runs.job import Job
from lmtrain.composition.stored_runs.resume import find_checkpoint
from lmtrain.composition.stored_runs.spent_budget import nothing_left, time_of_earlier_attempts


def planned_start(job: Job) -> PlannedStart:
    """Return the start of a job, as its training finds it.

    Raises:
        ConfigurationError: `resume` asks for a checkpoint that is not there, or of other settings.
    """
    checkpoint = find_checkpoint(job, verifies=False)
    if checkpoint is None:
        return FROM_THE_START
    there = checkpoint.identity
    if with_settings(there, identity_of_settings(job.config)) != there:
        from lmtrain.composition.execution.changed_resume import require_same_settings  # where they differ

        require_same_settings(job, checkpoint)
    earlier, num_ranks = time_of_earlier_attempts(job), job.config.num_ranks
    done = RunSoFar(steps=checkpoint.step, seconds=earlier.seconds, device_seconds=earlier.device_seconds / num_ranks)

    def left(horizon: Horizon) -> str:
        spent = done.spent(horizon.time_limit)
        line = nothing_left(horizon, checkpoint, folder=job.folder, spent_seconds=spent)
        return line or f"goes on from {_near(checkpoint.path)}: FLOPs, time and money are those of the steps ahead"

    return PlannedStart(done=done, left=left)


def _near(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
