"""From a checked job to a running one: take its folder, and train here or on new ranks."""

import shutil
import sys
from pathlib import Path
from typing import Final

from omegaconf import OmegaConf

from lmtrain.errors import (
    EXIT_CONFIGURATION,
    EXIT_DATA,
    EXIT_DONE,
    EXIT_NO,
    LMTRAIN_ERRORS,
)
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.local import launch
from lmtrain.run.stored_runs.job import Job, job_of_rank
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import OF_OLDER, RunFolder, run_path
from lmtrain.training.lean_import import import_lightning

# By the exit code of a rank: what it refused, or left nothing to train, leaves no attempt and no new run.
REFUSED_OR_DONE: Final = (EXIT_DONE, EXIT_CONFIGURATION, EXIT_DATA)


def start(job: Job, *, outer: OuterLauncher | None, isolated: bool = False) -> int:
    """Train a job: in this process for one rank, else in new processes; return the exit code.

    `isolated` gives even a single rank its own process, for a sweep's trials.
    """
    folder = RunFolder(run_path(Path(job.root), job.name), root=Path(job.root))
    if outer is not None and outer.rank != 0:
        return train(job)
    older = set_aside(folder) if job.config.resume == "never" else None
    is_new, code = not folder.path.exists(), EXIT_DATA
    folder.create(sweep=job.sweep)
    with folder.lock():
        try:
            config = OmegaConf.to_yaml(OmegaConf.create(redact(job.config.values)))
            attempt = folder.start_attempt(config, job.overrides)
            job.save(attempt / "job.json")
            num_ranks = job.config.trainer.devices
            if outer is not None or not (isolated or num_ranks > 1):
                code = train(job)
            else:
                prepare_data(job)
                path, handed = attempt / "job.json", job.handed_over()
                code = launch(path, num_processes=num_ranks, run_folder=job.folder, more_environment=handed)
        except LMTRAIN_ERRORS:
            raise
        except BaseException:
            code = EXIT_NO  # the run stays, with what it wrote
            raise
        finally:
            if code in REFUSED_OR_DONE:
                for attempt in folder.attempts()[-1:]:
                    folder.withdraw(attempt)
            if code in REFUSED_OR_DONE and is_new:
                folder.discard_untrained()
            if older is not None and not folder.path.exists():
                shutil.move(older, folder.path)
                print(f"{folder.path} is as it was.", file=sys.stderr)
    return code


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
