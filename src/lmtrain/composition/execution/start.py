"""From a composed config to a running job: name it, check it, take its folder, and train here or on new ranks."""

import math
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmtrain.composition.execution.typed_places import refuse_places
from lmtrain.composition.nodes.check import check_node, check_value
from lmtrain.composition.rules.tokenizer_size import require_size_for_model
from lmtrain.composition.rules.typed_values import refuse_typed
from lmtrain.composition.stored_runs.job import Job, job_of_rank
from lmtrain.errors import EXIT_CONFIGURATION, EXIT_DONE, ConfigurationError, suggest
from lmtrain.launch.detect import OuterLauncher
from lmtrain.launch.local import launch
from lmtrain.tracking.redaction import redact
from lmtrain.tracking.run_folder import RunFolder, run_path
from lmtrain.training.lean_import import import_lightning

SCALARS: dict[str, Any] = {
    "seed": int,
    "resume": str,
    "init_from": str | None,
    "gradient_clip_norm": float | None,
    "deterministic": bool,
}
NODES = frozenset(
    {
        "run",
        "batch",
        "budget",
        "model",
        "attention",
        "loss",
        "data",
        "packing",
        "source",
        "cleaning",
        "deduplicate",
        "engine",
        "tokenizer",
        "optimizer",
        "schedule",
        "momentum_schedule",
        "weight_decay_schedule",
        "spikes",
        "weight_average",
        "scaling",
    }
    | {"precision", "strategy", "recompute", "compile", "cluster", "callbacks", "logger", "trainer"}
)


def check_config(config: dict[str, Any], *, allowed: list[str], typed: Sequence[str] = ()) -> dict[str, Any]:
    """Return a whole config with every value checked and every amount a number; what was `typed` is looked at first.

    Raises:
        ConfigurationError: The first thing that is wrong.
    """
    for name in config:
        if name not in NODES and name not in SCALARS:
            msg = f"{name}={config[name]} is not a key of a run.{suggest(name, [*NODES, *SCALARS])}"
            raise ConfigurationError(msg)
    scalars = {name: check_value(config[name], kind, key=name) for name, kind in SCALARS.items()}
    clip = scalars["gradient_clip_norm"]
    if clip is not None and not 0 < clip < math.inf:
        msg = f"gradient_clip_norm={clip:g} is not a finite number above 0; 1 is usual, and null does not clip."
        raise ConfigurationError(msg)
    if not 0 <= scalars["seed"] < 2**63:
        msg = (
            f"seed={scalars['seed']} is not at least 0 and below 2**63; nearest valid: {abs(scalars['seed']) % 2**63}."
        )
        raise ConfigurationError(msg)
    refuse_typed(config, typed, allowed=allowed)
    refuse_places(config, typed)
    import_lightning()
    names = (*sorted(NODES - {"data"}), "data")  # it repeats others: theirs is the key to name
    require_size_for_model(config, allowed=allowed)
    nodes = {name: check_node(config[name], key=name, allowed=allowed) for name in names}
    return {**scalars, **nodes}


def start(job: Job, *, outer: OuterLauncher | None, isolated: bool = False) -> int:
    """Train a job: in this process for one rank, else on ranks of its own; return the exit code.

    `isolated` gives even a single rank its own process, so that the trials of a sweep share nothing.
    """
    require_launcher(job, outer)
    folder = RunFolder(run_path(Path(job.root), job.name), root=Path(job.root))
    if outer is not None and outer.rank != 0:
        return train(job)
    older = set_aside(folder) if job.config["resume"] == "never" else None
    is_new = not folder.path.exists()
    with undone_where_refused(lambda: _discard(folder, older) if is_new else None) as end:
        folder.create(sweep=job.sweep)
        with folder.lock():
            attempt = folder.start_attempt(OmegaConf.to_yaml(OmegaConf.create(redact(job.config))), job.overrides)
            job.save(attempt / "job.json")
            with undone_where_refused(partial(folder.withdraw, attempt)) as end_of_attempt:
                is_here = outer is not None or not (isolated or job.config["trainer"]["devices"] > 1)
                end.code = end_of_attempt.code = train(job) if is_here else _train_on_ranks(job, attempt)
    return end.code


@dataclass
class CommandEnd:
    """How a command ended."""

    code: int = EXIT_DONE


@contextmanager
def undone_where_refused(undo: Callable[[], object]) -> Generator[CommandEnd]:
    """Undo where the configuration is refused here, by an exception, or on a rank, by its exit code."""
    end = CommandEnd()
    try:
        yield end
    except ConfigurationError:
        undo()
        raise
    if end.code == EXIT_CONFIGURATION:
        undo()


def _discard(folder: RunFolder, older: Path | None) -> None:
    """Delete the folder of a new run, and give its name back to the one that was set aside for it."""
    folder.discard_untrained()
    if older is not None and not folder.path.exists():
        shutil.move(older, folder.path)
        print(f"{folder.path} is as it was.", file=sys.stderr)


def _train_on_ranks(job: Job, attempt: Path) -> int:
    prepare_data(job)
    return launch(
        attempt / "job.json",
        num_processes=job.config["trainer"]["devices"],
        run_folder=job.folder,
        more_environment=job.handed_over(),
    )


def run_saved(path: Path) -> int:
    """Train, on one of several ranks, the job that the parent saved; return the exit code."""
    return train(job_of_rank(path))


def train(job: Job) -> int:
    """Train a job on this rank; torch and lightning are imported only where training happens."""
    import_lightning()
    from lmtrain.composition.execution.run import execute

    return execute(job)


def set_aside(folder: RunFolder) -> Path | None:
    """Rename an older run of the same name, so that resume=never loses nothing, and return its new place."""
    if not folder.path.exists():
        return None
    numbers = (number for number in range(1, sys.maxsize) if not _older(folder, number).exists())
    older = _older(folder, next(numbers))
    with folder.lock():
        shutil.move(folder.path, older)
    print(f"{folder.path} is now {older}; the new run starts at step 0.", file=sys.stderr)
    return older


def prepare_data(job: Job) -> None:
    """Prepare the data once, in the parent, so that ranks find it and a refusal comes early."""
    from lmtrain.composition.nodes.instantiate import instantiate

    node = job.config["data"].get("folder")
    if isinstance(node, dict):
        instantiate(node, key="data.folder")


def _older(folder: RunFolder, number: int) -> Path:
    return folder.path.with_name(f"{folder.path.name}.before-{number}")


def require_launcher(job: Job, outer: OuterLauncher | None) -> None:
    """Refuse several nodes without a launcher that started this one.

    Raises:
        ConfigurationError: `trainer.num_nodes` is above 1 in a process that no launcher started.
    """
    nodes = job.config["trainer"]["num_nodes"]
    if outer is None and nodes > 1:
        msg = (
            f"trainer.num_nodes={nodes} needs a launcher on every node; run the same command under "
            f"torchrun --nnodes={nodes} --nproc-per-node={job.config['trainer']['devices']} (or SLURM's srun)."
        )
        raise ConfigurationError(msg)
