"""Where a run continues: its newest checkpoint, the one in `resume`, or another run's (a fork); and what is left to do.

A fork takes weights, optimizer state and place in the data from a checkpoint of another run and leaves that run as it
is. `fork.json` in its folder remembers where it began, so that the same command continues it.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lmtrain.accounting.budgets import Horizon, RunSoFar
from lmtrain.accounting.observed.time_accounts import device_seconds
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError, did_you_mean, suggest
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.find import nearest_run
from lmtrain.run.stored_runs.find_run import (
    CHECKPOINTS,
    is_run,
    may_have_checkpoint,
    missing_checkpoint,
    newest_checkpoint,
    not_trained,
)
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork, read_fork, write_fork
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, PHASES
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, read_facts

if TYPE_CHECKING:
    from lmtrain.data.interleave import PhasesRead, Placed

WAYS_TO_GO_ON: Final = ("auto", "must", "never")  # values of `resume` other than a path


def find_checkpoint(job: Job) -> CheckpointFacts | None:
    """Return the checkpoint to continue from, according to `resume`: auto, must, never, or a path.

    Raises:
        ConfigurationError: `resume` names a checkpoint that does not exist, or another run's although this one has
            begun elsewhere.
        EnvironmentProblem: There are checkpoints, and all are damaged.
    """
    resume = job.config.resume
    if resume == "never":
        return None
    fork = read_fork(job.folder)
    if resume not in ("auto", "must"):
        facts = _checkpoint_at(Path(resume))
        own = None if is_own(facts, job.folder) else _newest(job.folder)
        return facts if own is None else _own_of_fork(job, own, fork)
    facts = _newest(job.folder) or (_start_of(fork, job.folder) if fork else None)
    if facts is None and resume == "must":
        raise _nothing_to_resume(job.folder)
    return facts


def _newest(run_folder: Path) -> CheckpointFacts | None:
    return newest_checkpoint(run_folder / CHECKPOINTS, fix="Start again with resume=never.")


def _checkpoint_at(path: Path) -> CheckpointFacts:
    facts = read_facts(path)
    if facts is None and (path / CHECKPOINTS).is_dir():
        facts = _newest(path)
    if facts is None:
        raise _no_checkpoint(path)
    return facts


def _own_of_fork(job: Job, own: CheckpointFacts, fork: Fork | None) -> CheckpointFacts:
    """Return the own newest checkpoint of a run that began where `resume` says."""
    if fork is not None and fork.starts_at(Path(job.config.resume)):
        return own
    began = f"from {fork.checkpoint}" if fork else "at step 0"
    raise ConfigurationError(
        f"resume={job.config.resume} is another run's, but {job.folder} began {began} and has its own checkpoints; "
        "choose another run.name for a new fork, or resume=auto to continue this run."
    )


def _start_of(fork: Fork, run_folder: Path) -> CheckpointFacts:
    if fork.is_gone:
        raise ConfigurationError(
            f"{run_folder} began from {fork.checkpoint}, of a run that no longer exists, and has no checkpoint; start "
            "again with resume=never."
        )
    return _checkpoint_at(fork.checkpoint)


def is_own(facts: CheckpointFacts, run_folder: Path) -> bool:
    """Return whether a checkpoint is in this run's folder."""
    return facts.path.resolve().is_relative_to(run_folder.resolve())


def fork_step(job: Job, checkpoint: CheckpointFacts | None) -> int | None:
    """Return the step where a run resumed from `checkpoint` left another run; None for a run that is not a fork."""
    if checkpoint is not None and not is_own(checkpoint, job.folder):
        return checkpoint.step
    fork = read_fork(job.folder)
    return fork.step if fork else None


def remember_fork(job: Job, checkpoint: CheckpointFacts) -> None:
    """Note and report where a fork begins, before its first step."""
    if is_own(checkpoint, job.folder):
        return
    write_fork(job.folder, Fork(checkpoint=checkpoint.path, step=checkpoint.step))
    print(
        f"{job.folder} continues from {checkpoint.path} (step {checkpoint.step:,}) with its optimizer state and place "
        "in the data; that run stays as it is.",
        flush=True,
    )


def require_begun(run_folder: Path) -> None:
    """Refuse resume=must for a run without a checkpoint or a fork, damaged or not."""
    if not any((run_folder / CHECKPOINTS).glob("step_*")) and read_fork(run_folder) is None:
        raise _nothing_to_resume(run_folder)


def require_place(resume: str) -> None:
    """Refuse a `resume` that is neither a keyword nor a checkpoint nor a run with one; none is verified."""
    if resume not in WAYS_TO_GO_ON and not may_have_checkpoint(Path(resume)):
        raise _no_checkpoint(Path(resume))


def _nothing_to_resume(run_folder: Path) -> ConfigurationError:
    return ConfigurationError(f"resume=must, but {run_folder} holds no checkpoint; use resume=auto to start at step 0.")


def _no_checkpoint(path: Path) -> ConfigurationError:
    if is_run(path) and not may_have_checkpoint(path):
        return not_trained(path, key="resume")
    nearest = nearest_run(path)
    return missing_checkpoint(path, key="resume") or ConfigurationError(
        f"resume: must be auto, must, never, or the folder of a checkpoint or a run, got {path}."
        f"{suggest(str(path), ('auto', 'must', 'never'))}"
        f"{did_you_mean([str(nearest)] if nearest else [])}"
    )


def run_so_far(job: Job, checkpoint: CheckpointFacts | None, *, before: int | None = None) -> RunSoFar:
    """Return the steps of a checkpoint and the time of the run's attempts.

    `before` counts only attempts with a lower number; None counts all.
    """
    num_ranks = job.config.num_ranks
    attempts = [each for each in read_attempts(job.folder) if before is None or each.number < before]
    return RunSoFar(
        steps=checkpoint.step if checkpoint else 0,
        seconds=sum(each.wall_seconds for each in attempts),
        device_seconds=device_seconds(attempts, num_devices=num_ranks) / num_ranks,
    )


def nothing_left(horizon: Horizon, checkpoint: CheckpointFacts, *, folder: Path, spent_seconds: float) -> str | None:
    """Return a line if the budget ends exactly at the checkpoint, None if steps are left; refuse one past the budget.

    `spent_seconds` is the time of the earlier attempts of the run in `folder`, for a budget of time.
    """
    limit = horizon.seconds
    has_time = limit is None or (spent_seconds < limit and not _ended_by_time(horizon, checkpoint, folder))
    if has_time and (horizon.most_steps is None or checkpoint.step < horizon.most_steps):
        return None
    place, fix = folder, "raise the budget to train on, or start again with another run.name or resume=never"
    if not is_own(checkpoint, folder):
        place, run = checkpoint.path, checkpoint.path.parents[1]
        fix = f"raise budget.{horizon.limited_by} above it, or use `lmtrain generate {run}`"
    where = f"{place} is at step {checkpoint.step} ({format_quantity(checkpoint.tokens)} tokens)"
    if has_time and checkpoint.step > horizon.steps:
        raise ConfigurationError(
            f"budget.{horizon.limited_by} ends the run at step {horizon.steps}, which is already spent: {where}; {fix}."
        )
    return f"Nothing left to do: {where}, the end of its budget; {fix}."


def _ended_by_time(horizon: Horizon, checkpoint: CheckpointFacts, folder: Path) -> bool:
    """Return whether the same budget of time ended the run here: at the last step within it, with some seconds left."""
    before: Any = read_json(folder / "plan.json").get("horizon", {})
    now = {"steps": checkpoint.step, "seconds": horizon.seconds}
    return is_own(checkpoint, folder) and before.items() >= now.items()


def phases_read(checkpoint: CheckpointFacts | None) -> "PhasesRead | None":
    """Return a mixture's phases before a checkpoint; another budget leaves the order of the text before it alone.

    None if the attempt that wrote the checkpoint noted none, as for data of one phase.
    """
    if checkpoint is None or checkpoint.attempt is None:
        return None
    from lmtrain.data.interleave import PhasesRead  # numpy

    phases = phases_of(checkpoint.path.parents[1] / "attempts" / str(checkpoint.attempt))
    return PhasesRead(phases=phases, step=checkpoint.step) if phases else None


def phases_of(attempt: Path) -> "list[Placed]":
    """Return the phases noted by an attempt; an empty list if it noted none, or the file is damaged."""
    noted = read_json(attempt / DATA_OF_ATTEMPT).get(PHASES)
    try:
        rows = [(int(start), tuple(map(float, weights))) for start, weights in cast("list[tuple[int, Any]]", noted)]
    except (TypeError, ValueError, OverflowError):
        return []
    starts = [start for start, _ in rows]
    are_shares = all(sum(weights) > 0 and min(weights) >= 0 and max(weights) < math.inf for _, weights in rows)
    return rows if starts[:1] == [0] and starts == sorted(starts) and are_shares else []
