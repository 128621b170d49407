"""From a checked job to a running one: take its folder, and train here or on new ranks."""

import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from lmtrain.errors import (
    EXIT_CONFIGURATION,
    EXIT_DATA,
    EXIT_DONE,
    LMTRAIN_ERRORS,
    EnvironmentProblem,
)
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.local import launch
from lmtrain.run.stored_runs.job import Job, job_of_rank
from lmtrain.tracking.events import noted_set_up
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import OF_OLDER, RunFolder, run_path
from lmtrain.training.lean_import import import_lightning


def start(job: Job, *, outer: OuterLauncher | None, isolated: bool = False) -> int:
    """Train a job: in this process for one rank, else in new processes; return the exit code.

    `isolated` gives even a single rank its own process, for a sweep's trials.
    """
    folder = RunFolder(run_path(Path(job.root), job.name), root=Path(job.root))
    if outer is not None and outer.rank != 0:
        return train(job)
    older = set_aside(folder) if job.config.resume == "never" else None
    is_new = not folder.path.exists()
    with undone_where_refused(lambda: _discard(folder, older) if is_new else None) as end:
        folder.create(sweep=job.sweep)
        with folder.lock():
            end.has_folder = True
            attempt = folder.start_attempt(
                OmegaConf.to_yaml(OmegaConf.create(redact(job.config.values))), job.overrides
            )
            job.save(attempt / "job.json")
            noted = noted_set_up(
                attempt,
                began=job.began,
                num_devices=job.config.num_ranks,
                is_over=partial(folder.is_accepted, attempt),
            )
            with undone_where_refused(partial(folder.withdraw, attempt)) as end_of_attempt, noted:
                end_of_attempt.has_folder = True
                is_here = outer is not None or not (isolated or job.config.trainer.devices > 1)
                end.code = end_of_attempt.code = train(job) if is_here else _train_on_ranks(job, attempt)
            if end.code == EXIT_DONE:
                folder.withdraw(attempt)  # nothing was left to train
    if is_new and end.code == EXIT_DONE:  # another run's checkpoint at the end of the budget left nothing to train
        folder.discard_untrained()
    return end.code


@dataclass
class CommandEnd:
    """How a command ended, and whether it had the run's folder to itself."""

    code: int = EXIT_DONE
    has_folder: bool = False


@contextmanager
def undone_where_refused(undo: Callable[[], object]) -> Generator[CommandEnd]:
    """Undo a start that is refused: here by an exception, on a rank by the exit code of configuration or data."""
    end = CommandEnd()
    try:
        yield end
    except LMTRAIN_ERRORS as refusal:
        if end.has_folder or not isinstance(refusal, EnvironmentProblem):  # it may be about another process
            undo()
        raise
    if end.code in (EXIT_CONFIGURATION, EXIT_DATA):
        undo()


def _discard(folder: RunFolder, older: Path | None) -> None:
    """Delete the folder of a new run, and move the run set aside for it back."""
    folder.discard_untrained()
    if older is not None and not folder.path.exists():
        shutil.move(older, folder.path)
        print(f"{folder.path} is as it was.", file=sys.stderr)


def _train_on_ranks(job: Job, attempt: Path) -> int:
    prepare_data(job)
    return launch(
        attempt / "job.json",
        num_processes=job.config.trainer.devices,
        run_folder=job.folder,
        more_environment=job.handed_over(),
    )


def run_saved(path: Path) -> int:
    """Train the parent's saved job on one of several ranks; return the exit code."""
    return train(job_of_rank(path))


def train(job: Job) -> int:
    """Train a job on this rank; torch and lightning are imported only where training happens."""
    import_lightning()
    from lmtrain.run.execution.run import execute

    return execute(job)


def set_aside(folder: RunFolder) -> Path | None:
    """Rename an older run of the same name (resume=never loses nothing), and return its new path."""
    if not folder.path.exists():
        return None
    numbers = (number for number in range(1, sys.maxsize) if not _older(folder, number).exists())
    older = _older(folder, next(numbers))
    with folder.lock():
        shutil.move(folder.path, older)
    print(f"{folder.path} is now {older}; the new run starts at step 0.", file=sys.stderr)
    return older


def prepare_data(job: Job) -> None:
    """Prepare the data once, in the parent, before the ranks: a refusal comes early."""
    if folder := job.config.data.node("folder"):
        folder.build()


def _older(folder: RunFolder, number: int) -> Path:
    return folder.path.with_name(f"{folder.path.name}{OF_OLDER}{number}")
