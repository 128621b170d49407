"""Run a function on a composed config, or on each of a sweep; word Hydra's refusals as ours.

Configs are composed by Hydra's compose API alone: it instantiates nothing.
"""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from lmtrain.accounting.scaling import UNSCALED
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose import bounded_config
from lmtrain.run.compose.arguments import Arguments
from lmtrain.run.compose.choices import Choices, told_apart
from lmtrain.run.compose.flags import Flags, parse_flags
from lmtrain.run.compose.foreign.equivalents import meant_by_one_value
from lmtrain.run.compose.lean_compose import lean_composing
from lmtrain.run.compose.paths import conf_folder, group_folders, option_names
from lmtrain.run.compose.show_config import show
from lmtrain.run.compose.trials import single, trials_of
from lmtrain.run.compose.typed_alone import refuse_untyped
from lmtrain.run.compose.unknown_words import (
    is_setting,
    number_as_option,
    of_training_alone,
    require_parts,
    unknown_key,
    unknown_option,
)
from lmtrain.run.schema.no_value import no_value
from lmtrain.tracking.redaction import remember_secrets

SEARCH: Final = "search"  # in hydra.sweeper: the option searches
SETTINGS: Final = "sweep"
NO_NUMBER: Final = re.compile(r"mismatch type argument (\w+): \w+ is incompatible with Union\[int, float\]")
SEVERAL_VALUES: Final = "Ambiguous value for argument"

Task = Callable[[dict[str, Any], Choices], None]


def for_each_config(task: Task, arguments: Arguments, *, config_name: str, shown: Task | None = None) -> None:
    """Compose and call `task(config, choices)` once, or once a trial under -m.

    `--cfg` prints the config instead, and calls `shown(config, choices)`.

    Raises:
        ConfigurationError: The command line does not compose.
    """
    flags = parse_flags(arguments.flags)
    found: list[tuple[dict[str, Any], Choices]] = []
    with _worded(arguments, config_name=config_name):
        every = _all_configs(arguments, flags, config_name=config_name)
        for composed, trial in every:
            if flags.show:
                show(composed, flags)
                if shown is None:
                    continue
            _refuse_search(composed)
            choices = Choices(composed.hydra, trial=trial)
            if config_name == "train":
                require_parts(composed, choices.overrides, meant=meant_by_one_value)
            found.append((_plain(composed), choices))
            if flags.config_dir is not None:
                refuse_untyped(found[-1][0], arguments.overrides)
    for (_, choices), swept in zip(found, told_apart([choices.overrides for _, choices in found]), strict=True):
        choices.swept = swept
    for config, choices in found:
        (shown if shown and flags.show else task)(
            _scaled(config, choices.overrides, allowed=arguments.allowed_targets), choices
        )


@contextmanager
def _worded(arguments: Arguments, *, config_name: str) -> Generator[None]:
    """Turn the refusals of Hydra and OmegaConf during composing into our own messages."""
    try:
        yield
    except ConfigurationError:
        raise
    except (HydraException, OmegaConfBaseException) as problem:
        raise _translate(problem, arguments, config_name=config_name) from problem
    except yaml.YAMLError as problem:
        raise ConfigurationError(f"an option is no YAML: {' '.join(str(problem).split())}.") from problem
    except ValueError as problem:
        own = parse_flags(arguments.flags).config_dir
        told = number_as_option(str(problem), arguments.overrides, conf_folder())
        told = told or bounded_config.unreadable_option(problem, [*([Path(own)] if own else []), conf_folder()])
        words, reason = " ".join(arguments.overrides), str(problem).partition(" : Override(")[0]
        no_word = f"{words}: one of these words is no GROUP=OPTION, KEY=VALUE or ~KEY: {reason}."
        raise ConfigurationError(told or no_word) from problem


def _all_configs(arguments: Arguments, flags: Flags, *, config_name: str) -> list[tuple[DictConfig, Arguments | None]]:
    """Compose; a setting of the chosen option's code without a place in its file is added to it."""
    try:
        with _our_configs():
            return [*_configs(arguments, flags, config_name=config_name)]
    except ConfigCompositionException as problem:
        key = (_refused_override(problem) or "").partition("@")[0]
        typed = [word for word in arguments.overrides if word.startswith(f"{key}=")] if key else []
        if not typed or not is_setting(_chosen(key, arguments, config_name=config_name), key):
            raise
        overrides = [f"+{word}" if word in typed else word for word in arguments.overrides]
        return _all_configs(replace(arguments, overrides=overrides), flags, config_name=config_name)


def _configs(arguments: Arguments, flags: Flags, *, config_name: str) -> Generator[tuple[DictConfig, Arguments | None]]:
    """Yield the composed configs of a command line, each with its own arguments where it is a trial."""
    first, typed = [*_search_words(flags), *arguments.imported], [*arguments.overrides, *arguments.added]
    try:
        one = _composed([*first, *(single(typed) if flags.is_sweep else typed)], config_name=config_name)
    except ConfigCompositionException as problem:
        if SEVERAL_VALUES not in str(problem) or flags.show:
            raise
        one = _composed([*first, *single(typed)], config_name=config_name)  # a config may make itself a sweep
        if one.hydra.mode != RunMode.MULTIRUN:
            raise
    if not (flags.is_sweep or one.hydra.mode == RunMode.MULTIRUN):
        yield one, None
        return
    swept: Mapping[str, str] = one.hydra.sweeper.get("params") or {}
    for words in trials_of(typed, swept=swept):
        trial = arguments.of_trial(words)
        yield _composed([*_search_words(flags), *trial.imported, *words], config_name=config_name), trial


def _composed(words: list[str], *, config_name: str) -> DictConfig:
    bounded_config.require_bounded_words(words)
    composed = compose(config_name, overrides=words, return_hydra_config=True)
    if composed.hydra.get("callbacks"):
        name = next(iter(composed.hydra.callbacks))
        raise ConfigurationError(f"hydra.callbacks.{name} is not run: a run's callbacks stand under callbacks.{name}.")
    return composed


@dataclass(frozen=True)
class SweepNodes:
    """The parts of a composed config about its sweep: settings of a search, and values by key from an option."""

    settings: dict[str, Any]
    params: Mapping[str, Any] | None


def sweep_nodes(arguments: Arguments) -> SweepNodes:
    """Return the settings of the words' sweep; `params` is None without a search.

    Raises:
        ConfigurationError: The command line does not compose.
    """
    flags = parse_flags(arguments.flags)
    with _worded(arguments, config_name="train"), _our_configs():
        words = [*_search_words(flags), *arguments.imported, *single(arguments.overrides), *arguments.added]
        composed = _composed(words, config_name="train")
        is_search = SEARCH in composed.hydra.sweeper
        settings: Any = OmegaConf.to_container(composed[SETTINGS], resolve=True)
        params: Any = OmegaConf.to_container(composed.hydra.sweeper, resolve=False)
        if flags.config_dir is not None:
            refuse_untyped({SETTINGS: settings}, arguments.overrides)
    return SweepNodes(settings, (params.get("params") or {}) if is_search else None)


def _refuse_search(composed: DictConfig) -> None:
    """Refuse a search without -m, or in a command that does not search; and settings of none."""
    if SEARCH in composed.hydra.sweeper:
        raise ConfigurationError("hydra/sweeper=optuna searches for values: lmtrain train with -m starts it.")
    for word in composed.hydra.overrides.task:
        if word.lstrip("+").startswith(f"{SETTINGS}."):
            also = " (of a grid, -m alone, are sweep.parallel, sweep.launcher and sweep.slurm)"
            raise ConfigurationError(f"{word} is of a search{also}; add hydra/sweeper=optuna and -m, or leave it out.")


def _search_words(flags: Flags) -> list[str]:
    """Return the override for finding options in a person's own folder.

    Raises:
        ConfigurationError: There is no such folder.
    """
    if flags.config_dir is None:
        return []
    folder = Path(flags.config_dir)
    if not folder.is_dir():
        raise ConfigurationError(f"--config-dir {folder} is no folder; name one that holds GROUP/OPTION.yaml.")
    bounded_config.require_bounded_files(folder)
    return [f"hydra.searchpath=['file://{folder.absolute()}']"]


@contextmanager
def _our_configs() -> Generator[None]:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder().absolute()), version_base="1.3"), lean_composing():
        yield


def compose_config(overrides: list[str], *, config_name: str = "train") -> dict[str, Any]:
    """Compose a config without running anything: for tests, benchmarks and notebooks."""
    with _our_configs():
        return _scaled(_plain(compose(config_name, overrides=overrides)), overrides)


def _plain(composed: DictConfig) -> dict[str, Any]:
    with open_dict(composed):
        composed.pop("hydra", None)  # its parts resolve in Hydra's own jobs alone
        composed.pop(SETTINGS, None)  # of a search, no part of a run
    as_written: Any = OmegaConf.to_container(composed, resolve=False, throw_on_missing=False)
    bounded_config.require_bounded_references(as_written)
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    assert isinstance(plain, dict)
    remember_secrets(as_written, plain)
    return {str(name): value for name, value in plain.items()}


def _scaled(config: dict[str, Any], overrides: Sequence[str], *, allowed: Sequence[str] = ()) -> dict[str, Any]:
    if config.get("scaling", {}).get("_target_") == UNSCALED:
        return config
    from lmtrain.run.scaling import scaled  # checks its input by pydantic: most commands do without

    return scaled(config, overrides, allowed=allowed)


def _translate(problem: Exception, arguments: Arguments, *, config_name: str) -> Exception:
    if isinstance(problem, MissingConfigException):
        return ConfigurationError(_unknown_option(problem))
    if SEVERAL_VALUES in str(problem):
        return ConfigurationError(_several_values(str(problem)))
    if isinstance(problem, ConfigCompositionException) and (word := _refused_override(problem)):
        return ConfigurationError(_unknown_key(word, arguments, config_name=config_name))
    if isinstance(problem, (InterpolationToMissingValueError, MissingMandatoryValue)):
        key = str(problem).partition("Missing mandatory value: ")[2].split()[0]
        return no_value(key)
    if isinstance(problem, OverrideParseException):
        key = str(problem.override).partition("=")[0]
        if "while evaluating" in str(problem):  # a function of Hydra's, with other arguments than its own
            reason = NO_NUMBER.sub(r"its \1 is no finite number", str(problem).splitlines()[1].partition(": ")[2])
            return ConfigurationError(f"{problem.override}: {reason}, as {key}=interval(LOW,HIGH) or choice(A,B).")
        from lmtrain.run.compose.cut_values import unreadable  # only to refuse

        return unreadable(str(problem.override))
    return ConfigurationError(" ".join(str(problem).split()))


def _several_values(problem: str) -> str:
    typed = problem.partition("'")[2].partition("'")[0]
    key, _, values = typed.partition("=")
    first = values.partition(",")[0]
    return f"{typed} has several values; choose one, as in {key}={first}, or add -m for a run of each."


def _unknown_option(problem: MissingConfigException) -> str:
    group, _, option = str(problem.missing_cfg_file).partition("/")  # a typed option may be a path
    if group == "hydra":
        return f"{group}/{option.replace('/', '=')}: there is basic, a grid, and optuna, a search."
    options = problem.options or option_names(group)  # of a list: none told
    if not options:
        return f"There is no config {problem.missing_cfg_file} in {conf_folder()}."
    return unknown_option(group, option, options)


def _refused_override(problem: ConfigCompositionException) -> str | None:
    found = re.search(r"Could not override '([^']+)'", str(problem))
    return found.group(1) if found else None


def _unknown_key(word: str, arguments: Arguments, *, config_name: str) -> str:
    key = word.partition("@")[0]
    typed = next((text for text in arguments.overrides if text.lstrip("+~").startswith(f"{key}=")), word)
    from lmtrain.run.compose.help import is_of_training_alone  # only to refuse

    if is_of_training_alone(key, config_name=config_name, conf=conf_folder()):
        return of_training_alone(typed)
    config = _chosen(key, arguments, config_name=config_name)
    return unknown_key(key, typed=typed, config=config, conf=conf_folder())


def _chosen(key: str, arguments: Arguments, *, config_name: str) -> dict[str, Any]:
    """Return the config of the options alone, without the values beside a refused key; empty where it fails too."""
    groups = {path.name for path in group_folders()}
    chosen = [text for text in arguments.overrides if text.partition("=")[0] in groups - {key}]
    try:
        with _our_configs():
            return _plain(compose(config_name, overrides=chosen))
    except HydraException:
        return {}
