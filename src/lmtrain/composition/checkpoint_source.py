"""Find the model that a path means: a run's newest checkpoint, one checkpoint, or an imported folder."""

from dataclasses import dataclass
from pathlib import Path

from lmtrain.composition.job import Job, load_job
from lmtrain.errors import ConfigurationError
from lmtrain.interop.imported import is_imported
from lmtrain.training.checkpoints import CheckpointFacts, newest_whole, read_facts


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """One checkpoint and the run that made it."""

    run: Path
    job: Job
    checkpoint: CheckpointFacts


def find_source(path: Path, *, key: str) -> CheckpointSource | Path:
    """Return a checkpoint with its run, or the path itself where it is an imported folder.

    Raises:
        ConfigurationError: It is neither; `key` is what the command line calls it.
        EnvironmentProblem: All checkpoints of the run are damaged.
    """
    if is_imported(path):
        return path
    job = find_job(path, key=key)
    facts, run = read_facts(path), _run_of(path)
    if facts is None:
        facts, _ = newest_whole(run / "checkpoints")
    if facts is None:
        raise ConfigurationError(f"{key}={path} has no checkpoint yet; train it first, or name another run.")
    return CheckpointSource(run=run, job=job, checkpoint=facts)


def find_job(path: Path, *, key: str) -> Job:
    """Return what a run, or the run of a checkpoint, was told last; no checkpoint is verified for that.

    Raises:
        ConfigurationError: It is neither; `key` is what the command line calls it.
    """
    attempts = sorted((_run_of(path) / "attempts").glob("*/job.json"), key=lambda file: int(file.parent.name))
    if not attempts:
        raise ConfigurationError(
            f"{key}={path} is neither a run, nor a checkpoint of one, nor an imported folder; nearest valid: runs/NAME."
        )
    return load_job(attempts[-1])


def _run_of(path: Path) -> Path:
    return path if read_facts(path) is None else path.parent.parent
