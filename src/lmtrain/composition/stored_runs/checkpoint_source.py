"""Find the model of a path: a run's newest checkpoint, one checkpoint, or an imported folder."""

import difflib
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmtrain.composition.nodes.node import Node
from lmtrain.composition.stored_runs.job import StoredJob, load_job
from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.interop.imported_folder import is_imported
from lmtrain.storage.hashed_folder import damage
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, newest_whole, read_facts

if TYPE_CHECKING:
    from lmtrain.adapters.lora import Lora


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """One checkpoint and its run."""

    run: Path
    job: StoredJob
    checkpoint: CheckpointFacts


def find_source(path: Path, *, key: str) -> CheckpointSource | Path:
    """Return a checkpoint with its run, or the path itself where it is an imported folder.

    Raises:
        ConfigurationError: It is neither; `key` is its name on the command line.
        EnvironmentProblem: All checkpoints of the run are damaged.
    """
    if is_imported(path):
        return path
    job = find_job(path, key=key)
    facts, run = read_facts(path), _run_of(path)
    if facts is None:
        facts = newest_whole_aloud(run / "checkpoints")
    if facts is None:
        raise ConfigurationError(f"{key}={path} has no checkpoint yet; train it first, or name another run.")
    return CheckpointSource(run=run, job=job, checkpoint=facts)


def newest_whole_aloud(folder: Path, *, fix: str = "Name another run.") -> CheckpointFacts | None:
    """Return the newest undamaged checkpoint, and name on stderr each newer one passed over.

    Raises:
        EnvironmentProblem: Every one is damaged; `fix` ends the refusal.
    """
    facts, passed_over = newest_whole(folder, fix=fix)
    for line in passed_over:
        print(f"{line}; passed over", file=sys.stderr)
    return facts


def require_source(path: Path, *, key: str) -> None:
    """Refuse a path without a model, as `find_source` does, and verify no checkpoint.

    Raises: ConfigurationError.
    """
    if not is_imported(path):
        find_job(path, key=key)


def find_job(path: Path, *, key: str) -> StoredJob:
    """Return the last accepted job of a run, or of the run of a checkpoint; no checkpoint is verified for it.

    The folder may be anybody's: its config is data until `checked_part` has checked it, and it allows no target.

    Raises:
        ConfigurationError: It is neither; `key` is its name on the command line.
        EnvironmentProblem: It is a damaged checkpoint.
    """
    attempt = RunFolder(_run_of(path)).accepted_attempt()
    if path.parent.name == "checkpoints" and (problem := damage(path)):
        raise EnvironmentProblem(f"{key}={path} is damaged: {problem}; nearest valid: {path.parent.parent}.")
    if attempt is None or not (attempt / "job.json").is_file():
        raise ConfigurationError(
            f"{key}={path} is neither a run, nor a checkpoint of one, nor an imported folder; "
            f"nearest valid: {_nearest_run(path)}."
        )
    return replace(load_job(attempt / "job.json"), allowed_targets=[])


def checked_part(job: StoredJob, name: str, *, allowed: Sequence[str] = ()) -> Node:
    """Return one node of a stored job's config, checked as if it were typed; `allowed` is from the command line.

    Raises:
        ConfigurationError: It names forbidden code, or unknown settings.
        DataError: There is no such node.
    """
    values = job.config.get(name)
    if not isinstance(values, dict):
        raise DataError(f"the config of the run {job.name} has no {name}; name another run.")
    return Node(name, values).checked(allowed)


def _nearest_run(path: Path) -> Path:
    """Return another folder of such a name or nearly, beside the path or below runs/; runs/NAME without one."""
    root = path.parent if path.parent.is_dir() and path.parent != Path() else Path("runs")
    names = [each.name for each in root.iterdir() if each.is_dir() and each != path] if root.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return root / near[0] if near else Path("runs/NAME")


@contextmanager
def buildable(run: Path) -> Generator[None]:
    """Tell of impossible sizes as an error of the run's folder.

    Raises:
        DataError: torch refuses to build its model.
    """
    try:
        yield
    except RuntimeError as problem:
        raise DataError(f"the model of {run} cannot be built: {problem}; name another run.") from problem


def adapter_part(job: StoredJob) -> "Lora | None":
    """Return the adapter of a stored job, None where its weights themselves are trained."""
    from lmtrain.composition.parts.adapters import adapter_of  # torch: seconds, and refusals come through here

    return adapter_of(checked_part(job, "adapter")) if "adapter" in job.config else None


def _run_of(path: Path) -> Path:
    return path if read_facts(path) is None else path.parent.parent
