"""Refuse missing paths and devices among the typed words, without torch: its import takes seconds.

The parts that read them look again, with the same messages; here the refusal only comes sooner.
"""

import errno
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.options.parts import AttentionFacts, LossFacts
from lmtrain.accounting.options.precision import PrecisionFacts
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.unknown_words import node_at
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.stored_runs.checkpoint_source import require_source
from lmtrain.run.stored_runs.resume import require_place
from lmtrain.run.validators.typed_values import SOURCE_PATHS, require_paths
from lmtrain.tracking.atomic_files import storage_problem
from lmtrain.tracking.run_folder import run_path

# Files of the drivers of NVIDIA, of AMD, and of Windows below WSL; where none is, torch finds no GPU on Linux.
DRIVERS: Final = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


def refuse_places(config: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Look at the typed paths and devices.

    Raises:
        ConfigurationError: An impossible name of a run, or no run under a name.
        DataError: No data there.
        EnvironmentProblem: No GPU on this machine, or a folder closed to writing.
    """
    words = {word.lstrip("+").partition("=")[0]: word.lstrip("+") for word in typed}
    for kind in (AttentionFacts, LossFacts):
        if kind.group in words:
            _require_gpu(words[kind.group], facts_of(config[kind.group], kind, on_gpu=False, is_compiled=False))
    for key, check in CHECKS.items():
        value = node_at(config, key)
        if key in words and value is not None:
            check(str(value) if isinstance(value, (int, float)) else value, config)  # a folder's name may be a number


def _run_name(name: Any, config: Mapping[str, Any]) -> None:
    run_path(Path(str(config["run"]["root"])).absolute(), str(name))


def _root(path: Any, _: Mapping[str, Any]) -> None:
    folder = Path(str(path)).absolute()
    there = next(part for part in (folder, *folder.parents) if part.exists())
    if not there.is_dir():
        raise storage_problem(folder, NotADirectoryError(errno.ENOTDIR, f"{there} is a file"))
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as problem:  # its mode says nothing of a read-only disk, of /proc, or to root
        raise storage_problem(folder, problem) from problem


def _initial_weights(path: Any, config: Mapping[str, Any]) -> None:
    from lmtrain.run.stored_runs.other_model import KEY, require_same_sizes  # of a few runs alone

    require_source(Path(path), key=KEY)
    require_same_sizes(path, config["model"])


def _checkpoint(path: Any, _: Mapping[str, Any]) -> None:
    require_place(path)


def _prepared_folder(path: Any, _: Mapping[str, Any]) -> None:
    from lmtrain.data.shards import open_dataset  # numpy: only where such a folder is named

    if isinstance(path, str):
        open_dataset(path)


def _source_paths(paths: Any, _: Mapping[str, Any], *, key: str) -> None:
    require_paths(paths, key=key)


def _accelerator(word: Any, _: Mapping[str, Any]) -> None:
    if word in ("gpu", "cuda") and not _may_have_gpu():
        raise EnvironmentProblem(
            f"trainer.accelerator={word}: this machine has no GPU; nearest valid: trainer.accelerator=auto."
        )


def _precision(node: Any, _: Mapping[str, Any]) -> None:
    facts = facts_of(node, PrecisionFacts, has_bf16=True)
    if facts and facts.gpu_since and not _may_have_gpu():
        raise ConfigurationError(facts.refusal("this machine has none"))


def _require_gpu(word: str, facts: AttentionFacts | LossFacts | None) -> None:
    if facts and facts.without_gpu and not _may_have_gpu():
        raise ConfigurationError(
            f"{word} needs an NVIDIA GPU, and this machine has no GPU; nearest valid: {facts.without_gpu}."
        )


def _may_have_gpu() -> bool:
    return sys.platform != "linux" or any(Path(file).exists() for file in DRIVERS)


CHECKS: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {
    "run.name": _run_name,
    "run.root": _root,
    "resume": _checkpoint,
    "init_from": _initial_weights,
    "data.folder.path": _prepared_folder,
    "data.folder": _prepared_folder,
    **{key: partial(_source_paths, key=key) for key in SOURCE_PATHS},
    "trainer.accelerator": _accelerator,
    "precision": _precision,
}
