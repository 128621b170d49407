"""The run, checkpoint or imported folder that a path means, without torch; and who owns a folder."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem, did_you_mean
from lmtrain.interop.folders import ADAPTER_CONFIG, is_imported
from lmtrain.report.runs.find import has_checkpoint, nearest_run
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.job import StoredJob, load_job
from lmtrain.storage.hashed_folder import damage
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.tracking.sweep_file import NAME as SWEEP_FILE
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, list_checkpoints, newest_whole, read_facts

if TYPE_CHECKING:
    from lmtrain.adapters.lora import Lora

CHECKPOINTS: Final = "checkpoints"  # a run's folder of them
START: Final = "init_from"
PIPELINE_FILE: Final = "pipeline.json"
MAX_NAMED: Final = 4  # checkpoints in one message
HUB_NAME: Final = re.compile(r"(?!runs/)\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class CheckpointSource:
    """One checkpoint and its run."""

    run: Path
    job: StoredJob
    checkpoint: CheckpointFacts


def find_source(path: Path, *, key: str) -> CheckpointSource | Path:
    """Return a checkpoint with its run, or the path of an imported folder; `key` is its name on the command line."""
    if is_imported(path):
        return path
    job, run = find_job(path, key=key, takes_imports=True), run_of(path)
    facts = read_facts(path) or newest_checkpoint(run / CHECKPOINTS)
    if facts is None:
        raise not_trained(path, key=key)
    return CheckpointSource(run=run, job=job, checkpoint=facts)


def require_source(path: Path, *, key: str, is_trained: bool = True) -> None:
    """Refuse a path without a model, as `find_source` does, but verify no checkpoint; `is_trained` False needs none."""
    if is_imported(path):
        return
    find_job(path, key=key, takes_imports=True)
    if is_trained and not may_have_checkpoint(path):
        raise not_trained(path, key=key)


def newest_checkpoint(folder: Path, *, fix: str = "Name another run.") -> CheckpointFacts | None:
    """Return the newest undamaged checkpoint, and report on stderr each damaged newer one; `fix` ends a refusal."""
    facts, skipped = newest_whole(folder, fix=fix)
    for line in skipped:
        print(f"{line}; using an older checkpoint", file=sys.stderr)
    return facts


def find_job(path: Path, *, key: str, takes_imports: bool = False) -> StoredJob:
    """Return the last accepted job of a run, or of the run of a checkpoint, without verifying the checkpoint.

    The folder may be anybody's: its config is data until `checked_part` has checked it.

    Raises:
        ConfigurationError: It is neither; `key` is its name on the command line, and `takes_imports` says whether it
            may be an imported folder too.
        EnvironmentProblem: It is a damaged checkpoint.
    """
    if path.parent.name == CHECKPOINTS and path.is_dir() and (problem := damage(path)):
        raise EnvironmentProblem(f"{key}={path} is damaged: {problem}. Use {path.parent.parent} for another one.")
    if not path.is_dir() or not (file := _job_file(run_of(path))).is_file():
        raise missing_checkpoint(path, key=key) or _not_a_source(path, key=key, takes_imports=takes_imports)
    return load_job(file)


def checked_part(job: StoredJob, name: str, *, allowed: Sequence[str] = ()) -> Node:
    """Return one node of a stored job's config, checked like an override; `allowed` is from the command line."""
    values = job.config.get(name)
    if not isinstance(values, dict):
        raise DataError(f"the config of the run {job.name} has no {name}; use another run.")
    return Node(name, values).checked(allowed)


def adapter_part(job: StoredJob) -> "Lora | None":
    """Return the adapter of a stored job, None for a run that trained the weights themselves."""
    from lmtrain.run.builders.model import adapter_of  # torch

    return adapter_of(checked_part(job, "adapter")) if "adapter" in job.config else None


def run_of(path: Path) -> Path:
    """Return the run of a checkpoint, or the path itself."""
    return path if read_facts(path) is None else path.parent.parent


def is_run(path: Path) -> bool:
    """Return whether a folder is a run's, with a job."""
    return _job_file(path).is_file()


def may_have_checkpoint(path: Path) -> bool:
    """Return whether a path is a checkpoint or a run with one, damaged or not."""
    return read_facts(path) is not None or has_checkpoint(path)


def not_trained(path: Path, *, key: str) -> ConfigurationError:
    """Return the error for a run without a checkpoint."""
    name = stored_name(path.absolute())
    return ConfigurationError(f"{key}={path} has no checkpoint yet; train it first (run.name={name}).")


def missing_checkpoint(path: Path, *, key: str) -> ConfigurationError | None:
    """Return the error for a path among a run's checkpoints that is not one of them; None elsewhere."""
    kept = list_checkpoints(path.parent) if path.parent.name == CHECKPOINTS else []
    if not kept:
        return None
    named = ", ".join(facts.path.name for facts in kept[-MAX_NAMED:])
    why = "is not a checkpoint" if path.exists() else "does not exist (callbacks.checkpoint.keep_last removes old ones)"
    return ConfigurationError(f"{key}={path} {why}; {path.parent.parent} has {named}.")


def _not_a_source(path: Path, *, key: str, takes_imports: bool) -> ConfigurationError:
    """Return the error for a path that is not a run, with the command that imports another program's folder or name."""
    nearest = nearest_run(path, is_run=lambda folder: is_run(folder) or (takes_imports and is_imported(folder)))
    is_named = nearest is None and not path.parent.exists() and HUB_NAME.fullmatch(str(path)) is not None
    if takes_imports and (is_named or any(path.glob("*.safetensors"))):
        kind, base = ("peft", " --base BASE") if (path / ADAPTER_CONFIG).is_file() else ("hf", "")
        command = f"lmtrain import {kind} {shlex.quote(str(path))} runs/base{base}"
        return ConfigurationError(f"{key}={path} must be imported first: `{command}`, then {key}=runs/base.")
    kinds = "a run, a checkpoint" + (" or an imported folder" if takes_imports else "")
    return ConfigurationError(f"{key}={path} must be {kinds}.{did_you_mean([str(nearest)] if nearest else [])}")


def _job_file(run: Path) -> Path:
    """Return the file of a run's last accepted job; it is missing in other folders."""
    return (RunFolder(run).accepted_attempt() or run) / "job.json"


def require_own_folder(run_folder: Path, *, root: Path) -> None:
    """Refuse a run that would begin in another's folder, around another run or inside one."""
    owner = _owner(run_folder)
    if owner not in (None, "a run"):
        raise _taken(run_folder, f"is {owner}'s folder")
    if owner == "a run":  # it continues under its name
        return
    for folder in (each for each in run_folder.parents if each != root and each.is_relative_to(root)):
        if (other := _owner(folder)) in ("a run", "a sweep"):
            raise _taken(folder, f"is {other}'s folder")
    if inside := next(run_folder.rglob("status.json"), None):
        raise _taken(run_folder, f"holds other runs, as {inside.parent}")


def require_pipeline_folder(folder: Path) -> None:
    """Refuse a pipeline that would begin in the folder of a run or a sweep."""
    if (owner := _owner(folder)) in ("a run", "a sweep"):
        raise _taken(folder, f"is {owner}'s folder")


def _owner(folder: Path) -> str | None:
    """Return whose folder it is, None for nobody's."""
    files = {"a sweep": SWEEP_FILE, "a run": "run.json", "a pipeline": PIPELINE_FILE}
    found = next((owner for owner, file in files.items() if (folder / file).exists()), None)
    if found is None and (folder / "status.json").exists():
        return "a run"
    return "an import" if found is None and is_imported(folder) else found


def _taken(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"{folder} {why}; choose another run.name.")
