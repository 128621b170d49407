"""A run's starting checkpoint: its own newest, the one named by `resume`, or another run's (a fork).

A fork is a run of its own: it takes weights, optimizer state and place in the data from a checkpoint of another run
and leaves that run as it is. `fork.json` in its folder remembers where it began, so that the same command goes on.
"""

from collections.abc import Callable
from pathlib import Path

from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.find import of_folder
from lmtrain.run.stored_runs.checkpoint_source import (
    is_run,
    may_have_checkpoint,
    newest_whole_aloud,
    not_trained,
)
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.kept_checkpoints import CHECKPOINTS, not_kept
from lmtrain.tracking.fork import Fork, read_fork, write_fork
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, list_checkpoints, read_facts

Finder = Callable[[Path], CheckpointFacts | None]  # a run's newest checkpoint
WAYS_TO_GO_ON = ("auto", "must", "never")  # `resume` is one of them, or a path


def find_checkpoint(job: Job, *, verifies: bool = True) -> CheckpointFacts | None:
    """Return the checkpoint to go on from, as `resume` says: auto, must, never, or a path.

    One chosen by its name alone, as the newest with a manifest, where nobody `verifies` its files.

    Raises:
        ConfigurationError: `resume` asks for a checkpoint that is not there, or for another run's, though this one
            has begun elsewhere.
        EnvironmentProblem: There are checkpoints, and all are damaged.
    """
    resume = job.config.resume
    if resume == "never":
        return None
    newest = _newest if verifies else _last_listed
    if resume not in ("auto", "must"):
        facts = _checkpoint_at(Path(resume), newest=newest)
        return facts if is_own(facts, job.folder) else _fork_or_go_on(job, facts, newest=newest)
    fork = read_fork(job.folder)
    facts = newest(job.folder) or (_start_of(fork, job.folder, newest=newest) if fork else None)
    if facts is None and resume == "must":
        raise no_run_to_go_on(job.folder)
    return facts


def fork_step(job: Job, checkpoint: CheckpointFacts | None) -> int | None:
    """Return the step of the fork of a run resumed from `checkpoint`; None without a fork."""
    if checkpoint is not None and not is_own(checkpoint, job.folder):
        return checkpoint.step
    fork = read_fork(job.folder)
    return fork.step if fork else None


def remember_fork(job: Job, checkpoint: CheckpointFacts) -> None:
    """Note and tell where a fork begins, before its first step."""
    if is_own(checkpoint, job.folder):
        return
    write_fork(job.folder, Fork(checkpoint=checkpoint.path, step=checkpoint.step))
    print(
        f"{job.folder} goes on from {checkpoint.path} (step {checkpoint.step:,}) with its optimizer state and place in "
        "the data; that run stays as it is.",
        flush=True,
    )


def _fork_or_go_on(job: Job, facts: CheckpointFacts, *, newest: Finder) -> CheckpointFacts:
    """Return another run's checkpoint for a run without its own yet, else its own newest."""
    own, fork = newest(job.folder), read_fork(job.folder)
    if own is None:
        return facts
    if fork is not None and fork.starts_at(Path(job.config.resume)):
        return own
    began = f"from {fork.checkpoint}" if fork else "at step 0"
    raise ConfigurationError(
        f"resume={job.config.resume} is another run's, but {job.folder} began {began} and has checkpoints of its "
        "own; choose another run.name for a new fork, or resume=auto to go on with this one."
    )


def _start_of(fork: Fork, run_folder: Path, *, newest: Finder) -> CheckpointFacts:
    if fork.is_gone:
        raise ConfigurationError(
            f"{run_folder} began from {fork.checkpoint}, of a run no longer there, and has no checkpoint of its own; "
            "start again with resume=never."
        )
    return _checkpoint_at(fork.checkpoint, newest=newest)


def is_own(facts: CheckpointFacts, run_folder: Path) -> bool:
    """Tell whether a checkpoint is of this run's own folder."""
    return facts.path.resolve().is_relative_to(run_folder.resolve())


def _checkpoint_at(path: Path, *, newest: Finder) -> CheckpointFacts:
    facts = read_facts(path)
    if facts is None and (path / CHECKPOINTS).is_dir():
        facts = newest(path)
    if facts is None:
        raise no_checkpoint(path)
    return facts


def require_begun(run_folder: Path) -> None:
    """Look for a checkpoint or a fork, damaged or not, of a run under resume=must.

    Raises:
        ConfigurationError: There is none.
    """
    if not any((run_folder / CHECKPOINTS).glob("step_*")) and read_fork(run_folder) is None:
        raise no_run_to_go_on(run_folder)


def require_place(resume: str) -> None:
    """Refuse a `resume` neither a word nor a checkpoint nor a run with one; none is verified.

    Raises: ConfigurationError.
    """
    if resume not in WAYS_TO_GO_ON and not may_have_checkpoint(Path(resume)):
        raise no_checkpoint(Path(resume))


def no_run_to_go_on(run_folder: Path) -> ConfigurationError:
    """Return the message for resume=must where nothing has begun."""
    return ConfigurationError(f"resume=must, but {run_folder} holds no checkpoint; use resume=auto to start at step 0.")


def no_checkpoint(path: Path) -> ConfigurationError:
    """Return the message for a `resume` neither a word nor a place with a checkpoint."""
    if is_run(path) and not may_have_checkpoint(path):
        return not_trained(path, key="resume")
    return not_kept(path, key="resume") or ConfigurationError(
        f"resume={path} is neither auto, must, never nor a checkpoint or run folder; "
        f"nearest valid: resume={of_folder(path) or 'auto'}."
    )


def _newest(run_folder: Path) -> CheckpointFacts | None:
    return newest_whole_aloud(run_folder / CHECKPOINTS, fix="Start again with resume=never.")


def _last_listed(run_folder: Path) -> CheckpointFacts | None:
    return next(reversed(list_checkpoints(run_folder / CHECKPOINTS)), None)
