"""Find the model of a path: a run's newest checkpoint, one checkpoint, or an imported folder."""

import re
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lmtrain.errors import ConfigurationError, DataError, EnvironmentProblem
from lmtrain.interop.config_file import ADAPTER_CONFIG, CONFIG
from lmtrain.interop.imported_folder import is_imported
from lmtrain.report.runs.find import RUNS, has_checkpoint, nearest_run, newest_trained
from lmtrain.run.schema.node import Node
from lmtrain.run.stored_runs.job import StoredJob, load_job
from lmtrain.run.stored_runs.kept_checkpoints import CHECKPOINTS, not_kept
from lmtrain.storage.hashed_folder import damage
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, newest_whole, read_facts

if TYPE_CHECKING:
    from lmtrain.adapters.lora import Lora

HF, PEFT = "hf", "peft"  # of `lmtrain import`
TO_IMPORT: Final = {ADAPTER_CONFIG: PEFT, CONFIG: HF}
TOOLS: Final = {HF: "transformers", PEFT: "PEFT"}
IMPORTED: Final = "runs/base"  # as the documentation calls it
HUB_NAME: Final = re.compile(r"(?!runs/)\w[\w.-]*/[\w.-]+")
ANY_RUN: Final = Path("runs/NAME")


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
    job = find_job(path, key=key, takes_imports=True)
    facts, run = read_facts(path), run_of(path)
    if facts is None:
        facts = newest_whole_aloud(run / CHECKPOINTS)
    if facts is None:
        raise not_trained(path, key=key)
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


def require_source(path: Path, *, key: str, is_trained: bool = True) -> None:
    """Refuse a path without a model, as `find_source` does, and verify no checkpoint; not `is_trained`: one to come.

    Raises: ConfigurationError.
    """
    if is_imported(path):
        return
    find_job(path, key=key, takes_imports=True)
    if is_trained and not may_have_checkpoint(path):
        raise not_trained(path, key=key)


def may_have_checkpoint(path: Path) -> bool:
    """Tell whether a path is a checkpoint or a run with one, damaged or not."""
    return read_facts(path) is not None or has_checkpoint(path)


def not_trained(path: Path, *, key: str) -> ConfigurationError:
    """Return the refusal of a run without a checkpoint yet."""
    another = _newest_run(but=path)
    nearest = "" if another == ANY_RUN else f", as {another}"
    name = stored_name(path.absolute())
    return ConfigurationError(
        f"{key}={path} has no checkpoint yet; train it first (run.name={name}), or name another run{nearest}."
    )


def find_job(path: Path, *, key: str, takes_imports: bool = False) -> StoredJob:
    """Return the last accepted job of a run, or of the run of a checkpoint; no checkpoint is verified for it.

    The folder may be anybody's: its config is data until `checked_part` has checked it, and it allows no target.

    Raises:
        ConfigurationError: It is neither; `key` is its name on the command line, and `takes_imports` tells whether it
            may be an imported folder too.
        EnvironmentProblem: It is a damaged checkpoint.
    """
    if path.parent.name == CHECKPOINTS and path.is_dir() and (problem := damage(path)):
        raise EnvironmentProblem(f"{key}={path} is damaged: {problem}; nearest valid: {path.parent.parent}.")
    if not path.is_dir() or not (file := _job_file(run_of(path))).is_file():
        raise not_kept(path, key=key) or _not_a_source(path, key=key, takes_imports=takes_imports)
    return replace(load_job(file), allowed_targets=[])


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


def _not_a_source(path: Path, *, key: str, takes_imports: bool) -> ConfigurationError:
    """Return the refusal: the import of another program's folder, else the nearest run."""
    kind = next((kind for file, kind in TO_IMPORT.items() if (path / file).is_file()), None)
    if takes_imports and kind is not None and any(path.glob("*.safetensors")):
        base = " --base BASE" if kind == PEFT else ""
        command = f"lmtrain import {kind} {shlex.quote(str(path))} {IMPORTED}{base}"
        return ConfigurationError(
            f"{key}={path} is a folder of {TOOLS[kind]}; import it first: `{command}`, then {key}={IMPORTED}."
        )
    kinds = "neither a run, nor a checkpoint of one" + (", nor an imported folder" if takes_imports else "")
    if is_imported(path):
        kinds = "an imported folder, and only a run or a checkpoint of one is read here"
    nearest = nearest_run(path, is_run=lambda folder: is_run(folder) or (takes_imports and is_imported(folder)))
    if takes_imports and HUB_NAME.fullmatch(str(path)) and not path.parent.exists() and nearest is None:
        commands = f"`hf download {path} --local-dir base` and `lmtrain import hf base {IMPORTED}`"
        return ConfigurationError(f"{key}={path} is {kinds}; of a name on the hub: {commands}, then {key}={IMPORTED}.")
    return ConfigurationError(f"{key}={path} is {kinds}; nearest valid: {nearest or _newest_run(but=path)}.")


def _newest_run(*, but: Path) -> Path:
    """Return the newest run with a checkpoint below runs/, runs/NAME without one."""
    runs = [file.parent for file in RUNS.glob("*/status.json") if file.parent != but and is_run(file.parent)]
    newest = newest_trained(runs)
    return newest if newest is not None and has_checkpoint(newest) else ANY_RUN


def is_run(path: Path) -> bool:
    """Tell whether a folder is a run's, with a job."""
    return _job_file(path).is_file()


def _job_file(run: Path) -> Path:
    """Return the file of a run's last accepted job; it is missing in other folders."""
    return (RunFolder(run).accepted_attempt() or run) / "job.json"


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
    from lmtrain.run.builders.adapters import adapter_of  # torch: seconds, and refusals come through here

    return adapter_of(checked_part(job, "adapter")) if "adapter" in job.config else None


def run_of(path: Path) -> Path:
    """Return the run of a checkpoint, or the path itself."""
    return path if read_facts(path) is None else path.parent.parent
