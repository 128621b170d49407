"""The gate: a command's composed values are checked here once, without torch, and become a RunConfig.

Later code trusts it. Only the build of the parts on the meta device (`execution/meta_build.py`), which imports
torch and the parts' code, may refuse a run afterwards.

Order: names of code against the allow-list, keys and types of the run's own groups, rules between parts, then the
values of this command line: types, ranges, division of a step, paths and devices. Values of the shipped files are
right by test, and are not checked again.
"""

import errno
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from lmtrain.accounting.options.ranges import COUNTS, require_count
from lmtrain.errors import ConfigurationError, EnvironmentProblem, retold
from lmtrain.models.dimensions import REQUIRED, check_positive, check_possible
from lmtrain.run.compose.arguments import Arguments, Choices
from lmtrain.run.compose.paths import key_of
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.schema.check import TARGET, check_value, refuse_foreign
from lmtrain.run.schema.node import node_at
from lmtrain.run.schema.signatures import setting_type
from lmtrain.run.validators.callbacks import require_end, require_passes
from lmtrain.run.validators.data import SOURCE_PATHS, require_given, require_paths, require_rows, require_size_for_model
from lmtrain.run.validators.optimizer import require_ramps_of_budget, require_settings
from lmtrain.run.validators.parallelism import (
    require_groups,
    require_nodes_enough,
    require_parts,
    require_products,
    require_ranks,
    require_stages,
    require_workers,
)
from lmtrain.run.validators.task import (
    require_adaptable,
    require_conversations,
    require_objective,
    require_trained_weights,
)
from lmtrain.tracking.atomic_files import storage_problem

# What of this machine the run will use: its files and devices, its files alone (devices are the nodes'), or neither.
Place = Literal["here", "nodes", "paper"]
RAMP_GROUPS: Final = frozenset({"schedule", "momentum_schedule", "budget", "batch"})


def checked_configs(
    arguments: Arguments, *, place: Place = "here", even_shown: bool = False
) -> list[tuple[RunConfig, Choices]]:
    """Compose the config of a command line, or each of a sweep, and check it; --cfg prints it instead.

    A config that --cfg has printed is checked and returned too only if `even_shown`.
    """
    from lmtrain.run.compose.compose import configs_of  # Hydra

    composed = configs_of(arguments, config_name="train", even_shown=even_shown)
    trials = [choices.typed for _, choices in composed]
    found: list[tuple[RunConfig, Choices]] = []
    for number, (values, choices) in enumerate(composed):
        with naming_trial(trials, number) if choices.is_trial else nullcontext():
            config = check(values, allowed=arguments.allowed_targets, typed=choices.typed, place=place)
        found.append((config, choices))
    return found


@contextmanager
def naming_trial(trials: Sequence[Sequence[str]], number: int) -> Generator[None]:
    """Add a trial's number (from 0) and overrides to its errors, before any is started."""
    try:
        yield
    except (ConfigurationError, EnvironmentProblem) as refusal:
        where = f"trial {number + 1} of {len(trials)} ({' '.join(trials[number])})"
        raise retold(refusal, f"{refusal} This is {where}; no trial was started.") from refusal


def check(
    values: Mapping[str, Any], *, allowed: Sequence[str] = (), typed: Sequence[str] = (), place: Place = "here"
) -> RunConfig:
    """Check a composed config and return it typed and frozen; `typed` are the command's overrides.

    `allowed` are the packages that targets may name besides ours. A plan ("paper") needs no starting model and no
    device.

    Raises:
        ConfigurationError: The first wrong name or value, or parts that do not go together.
        DataError: No data at a path.
        EnvironmentProblem: No such device on this machine, or a folder closed to writing.
    """
    refuse_foreign(values, allowed=allowed)
    config = read_config(values, allowed=allowed)
    require_passes(config)
    require_end(config)
    require_given(values)
    if place != "here":
        require_nodes_enough(config)  # before a batch is divided over ranks that the cluster lacks
    _check_typed(config, typed)
    require_settings(config)
    if {key_of(word).partition(".")[0] for word in typed} & RAMP_GROUPS:
        require_ramps_of_budget(config)
    if place == "here":
        for rule in RULES_OF_TRAINING:
            rule(config)
    _check_places(config, typed, place=place)
    return config


def _check_typed(config: RunConfig, typed: Sequence[str]) -> None:
    """Check the values of the command line: type, range, target, and the sums that they enter."""
    keys = [key_of(word) for word in typed if "=" in word and not word.startswith("~")]
    for key in keys:
        _check_type(config.values, key)
    groups = {key.partition(".")[0] for key in keys}
    # A strategy that is still to be chosen decides how many ranks share a sequence.
    if groups & {"batch", "trainer", "strategy"} and not (config.spread.chooses and config.cluster.device_bytes):
        config.divided()
    if groups & {"trainer", "strategy"}:
        require_ranks(config)
    if groups & {"cluster", "precision"}:
        require_products(config)
    if "logger" in groups:
        config.logger.checked(config.allowed).build()
    if "model" in groups:
        sizes = config.model.get("vocab_size"), config.tokenizer.get("vocab_size")
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            require_rows(sizes[0], num_entries=sizes[1])


def _check_type(config: Mapping[str, Any], key: str) -> None:
    """Check a value against its setting's annotation in the source, where that is of plain types."""
    parent, _, name = key.rpartition(".")
    node = node_at(config, parent)
    if not parent or not isinstance(node, dict) or name not in node:
        return
    kind = setting_type(str(node.get(TARGET, "")), name)
    value = None if kind is None else check_value(node[name], kind, key=key)
    if parent.startswith("callbacks.") and name in COUNTS and isinstance(value, int | float):
        require_count(key, value)
    if parent == "model" and name in REQUIRED and isinstance(value, int):
        check_positive(**{name: value})
        check_possible(key, value)
    if key == "batch.context_tokens" and isinstance(value, int):
        check_possible(key, value)


def _check_places(config: RunConfig, typed: Sequence[str], *, place: Place) -> None:
    """Look at the typed paths of this machine; of a plan's, at a source's alone, where no other machine is named."""
    keys = {key_of(word) for word in typed}
    on_paper = SOURCE_PATHS if config.cluster.device is None else ()
    for key in on_paper if place == "paper" else PLACES:
        value = node_at(config.values, key)
        if key in keys and value is not None:
            path = str(value) if isinstance(value, (int, float)) else value  # a folder's name may be a number
            PLACES[key](path, config.values)


def _run_name(name: Any, config: Mapping[str, Any]) -> None:
    from lmtrain.tracking.run_folder import run_path  # of a typed name alone

    run_path(Path(str(config["run"]["root"])).absolute(), str(name))


def _root(path: Any, _: Mapping[str, Any]) -> None:
    folder = Path(str(path)).absolute()
    there = next(part for part in (folder, *folder.parents) if part.exists())
    if not there.is_dir():
        raise storage_problem(folder, NotADirectoryError(errno.ENOTDIR, f"{there} is a file"))
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as problem:  # its mode does not show a read-only disk, nor a limit of root's
        raise storage_problem(folder, problem) from problem


def _weights(path: Any, _: Mapping[str, Any], *, key: str) -> None:
    from lmtrain.run.stored_runs.find_run import require_source  # of a few runs alone

    require_source(Path(path), key=key)


def _checkpoint(path: Any, _: Mapping[str, Any]) -> None:
    from lmtrain.run.stored_runs.resume import require_place  # numpy: of a typed path alone

    require_place(path)


def _prepared_folder(path: Any, _: Mapping[str, Any]) -> None:
    from lmtrain.data.shards import open_dataset  # numpy: only where such a folder is named

    if isinstance(path, str):
        open_dataset(path)


# Parts of a run that trains here: against its text, its starting weights and its strategy.
RULES_OF_TRAINING: Final[tuple[Callable[[RunConfig], None], ...]] = (
    *(require_conversations, require_trained_weights, require_adaptable, require_objective),
    *(require_parts, require_workers, require_stages, require_groups, require_size_for_model),
)
PLACES: Final[Mapping[str, Callable[[Any, Mapping[str, Any]], None]]] = {
    "run.name": _run_name,
    "run.root": _root,
    "resume": _checkpoint,
    **{key: partial(_weights, key=key) for key in ("init_from", "teacher")},
    "data.folder.path": _prepared_folder,
    "data.folder": _prepared_folder,
    **{key: partial(lambda paths, _, key: require_paths(paths, key=key), key=key) for key in SOURCE_PATHS},
}
