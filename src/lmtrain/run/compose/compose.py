"""Compose the config of a command line, or of each trial of a sweep, by Hydra's compose API.

Hydra instantiates nothing here. Its refusals, and OmegaConf's, are worded as ours.
"""

import itertools
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal import defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from lmtrain.accounting.scaling import UNSCALED
from lmtrain.errors import ConfigurationError
from lmtrain.run.compose import suggestions, untrusted_options
from lmtrain.run.compose.arguments import Arguments, Choices
from lmtrain.run.compose.option_files import default_options, shared_keys
from lmtrain.run.compose.paths import conf_folder, group_folders, key_of, option_names
from lmtrain.run.schema.check import no_value
from lmtrain.run.schema.node import node_at
from lmtrain.run.schema.signatures import setting_names
from lmtrain.run.schema.targets import OPTION
from lmtrain.tracking.redaction import redact, remember_secrets
from lmtrain.training.lean_import import collecting_later

SEARCH: Final = "search"  # in hydra.sweeper: the option searches
SETTINGS: Final = "sweep"
# What Hydra reads as a flag, a number or nothing, and so not as an option's name.
NO_TEXT: Final = re.compile(r"true|false|null|nan|[+-]?(?:inf|[\d.][\d._]*(?:e[+-]?\d+)?)", re.IGNORECASE)
SEVERAL_VALUES: Final = "Ambiguous value for argument"


def configs_of(
    arguments: Arguments, *, config_name: str, even_shown: bool = False
) -> list[tuple[dict[str, Any], Choices]]:
    """Compose the config of a command line, or of each trial under -m.

    `--cfg` prints it instead; it is returned too only if `even_shown`.
    """
    found: list[tuple[dict[str, Any], Choices]] = []
    with _worded(arguments, config_name=config_name):
        for composed, trial in _all_configs(arguments, config_name=config_name):
            if arguments.show:
                show(composed, arguments)
                if not even_shown:
                    continue
            _refuse_search(composed)
            choices = Choices(composed.hydra, arguments, trial=trial)
            if config_name == "train":
                _require_parts(composed, choices.overrides)
            found.append((_plain(composed), choices))
            if arguments.config_dir is not None or arguments.continued:
                untrusted_options.refuse_untyped(found[-1][0], arguments.overrides)
    trials = [choices.overrides for _, choices in found]
    shared = set[str]().union(*trials[:1]).intersection(*trials)
    for _, choices in found:
        choices.swept = [word for word in choices.overrides if word not in shared]
    return [(_scaled(config, each.overrides, allowed=arguments.allowed_targets), each) for config, each in found]


def compose_config(overrides: list[str], *, config_name: str = "train") -> dict[str, Any]:
    """Compose a config without running anything: for tests, benchmarks and notebooks."""
    with _our_configs():
        return _scaled(_plain(compose(config_name, overrides=overrides)), overrides)


def show(composed: DictConfig, arguments: Arguments) -> None:
    """Print a composed config as --cfg asks."""
    part = arguments.show
    names = [str(name) for name in composed if part == "all" or (name == "hydra") == (part == "hydra")]
    found: Any = OmegaConf.masked_copy(composed, names)
    if arguments.resolve:
        found = OmegaConf.create(redact(OmegaConf.to_container(found, resolve=True, throw_on_missing=False)))
    print(OmegaConf.to_yaml(found))


def sweep_nodes(arguments: Arguments) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Return the settings of the words' sweep, and its values by key from an option; None without a search."""
    with _worded(arguments, config_name="train"), _our_configs():
        words = [*_search_path(arguments), *arguments.imported, *single(arguments.overrides), *arguments.added]
        composed = _composed(words, config_name="train")
        settings: Any = OmegaConf.to_container(composed[SETTINGS], resolve=True)
        sweeper: Any = OmegaConf.to_container(composed.hydra.sweeper, resolve=False)
        if arguments.config_dir is not None:
            untrusted_options.refuse_untyped({SETTINGS: settings}, arguments.overrides)
    return settings, (sweeper.get("params") or {}) if SEARCH in sweeper else None


def parsed_overrides(words: Sequence[str], *, swept: Mapping[str, str]) -> list[Override]:
    """Parse `swept`, values by key from a config's `hydra.sweeper.params`, and the typed words, which replace them."""
    parse = OverridesParser.create().parse_overrides
    typed = parse([*words])
    keys = {each.get_key_element() for each in typed}
    named = parse([f"{key}={values}" for key, values in swept.items()])
    return [*(each for each in named if each.get_key_element() not in keys), *typed]


def trials_of(words: Sequence[str], *, swept: Mapping[str, str]) -> list[list[str]]:
    """Return the overrides of each trial, the last key's values varying fastest; `swept` as parsed_overrides has it.

    Raises:
        ConfigurationError: A range of numbers without steps: only a search can draw from it.
    """
    return [[*trial] for trial in itertools.product(*map(_values, parsed_overrides(words, swept=swept)))]


def _values(override: Override) -> list[str]:
    key = override.get_key_element()
    if override.is_delete():
        return [override.input_line or ""]
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise ConfigurationError(
            f"{override.input_line} has no steps; list values, KEY=A,B, or give a range(START,STOP,STEP); "
            "hydra/sweeper=optuna draws from it."
        )
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def single(words: Sequence[str]) -> list[str]:
    """Return the words with one value in all trials."""
    parsed = OverridesParser.create().parse_overrides([*words])
    return [each.input_line or "" for each in parsed if not each.is_sweep_override()]


def _all_configs(arguments: Arguments, *, config_name: str) -> list[tuple[DictConfig, Arguments | None]]:
    """Compose; a setting that the chosen option's code takes, and its file does not name, is added to it.

    A shorthand has the settings of its file alone.
    """
    try:
        with _our_configs():
            return [*_configs(arguments, config_name=config_name)]
    except ConfigCompositionException as problem:
        key = (_refused_override(problem) or "").partition("@")[0]
        typed = [word for word in arguments.overrides if word.startswith(f"{key}=")] if key else []
        parent, _, name = key.rpartition(".")
        node = node_at(_chosen(key, arguments, config_name=config_name), parent) if typed and parent else None
        if not isinstance(node, dict) or OPTION in node or name not in setting_names(str(node.get("_target_", ""))):
            raise
        overrides = [f"+{word}" if word in typed else word for word in arguments.overrides]
        return _all_configs(replace(arguments, overrides=overrides), config_name=config_name)


def _configs(arguments: Arguments, *, config_name: str) -> Generator[tuple[DictConfig, Arguments | None]]:
    """Yield the composed configs of a command line, each with its own arguments where it is a trial."""
    typed = [*arguments.overrides, *arguments.added]
    before = [*_search_path(arguments), *arguments.imported, *arguments.continued]
    one = _composed([*before, *(single(typed) if arguments.is_sweep else typed)], config_name=config_name)
    if not arguments.is_sweep:
        yield one, None
        return
    for words in trials_of(typed, swept=one.hydra.sweeper.get("params") or {}):
        trial = arguments.of_trial(words)
        yield _composed([*_search_path(arguments), *trial.imported, *words], config_name=config_name), trial


def _composed(words: list[str], *, config_name: str) -> DictConfig:
    untrusted_options.require_bounded_words(words)
    for word in words:
        group, option = key_of(word), word.partition("=")[2]
        if NO_TEXT.fullmatch(option) and (options := option_names(group)):
            raise ConfigurationError(suggestions.unknown_option(group, option, options))
    composed = compose(config_name, overrides=words, return_hydra_config=True)
    if composed.hydra.get("callbacks"):
        name = next(iter(composed.hydra.callbacks))
        raise ConfigurationError(f"hydra.callbacks.{name} is not run: a run's callbacks stand under callbacks.{name}.")
    return composed


def _search_path(arguments: Arguments) -> list[str]:
    """Return the override for finding options in a person's own folder."""
    if arguments.config_dir is None:
        return []
    folder = Path(arguments.config_dir)
    if not folder.is_dir():
        raise ConfigurationError(f"--config-dir {folder} is not a folder; name one that holds GROUP/OPTION.yaml.")
    untrusted_options.require_bounded_files(folder)
    return [f"hydra.searchpath=['file://{folder.absolute()}']"]


@contextmanager
def _our_configs() -> Generator[None]:
    """Let Hydra compose from our folder, with two parts of it replaced for speed.

    At each of 55 files hydra-core 1.3 makes a config of all choices so far, half of the time of composing. It is made
    here where a list of defaults names an option by another's alone; 1.4 does so itself. OmegaConf reads YAML by
    Python's parser; libyaml's is a sixth faster in all.
    """
    make: Any = getattr(defaults_list, "_create_interpolation_map", None)

    def make_if_used(overrides: Any, listed: Sequence[Any], self_added: bool) -> Any:  # noqa: FBT001  as Hydra calls it
        return make(overrides, listed, self_added) if any(each.is_interpolation() for each in listed) else None

    GlobalHydra.instance().clear()
    with ExitStack() as replaced:
        if make is not None:
            replaced.enter_context(_replaced(defaults_list, "_create_interpolation_map", make_if_used))
        replaced.enter_context(_replaced(yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        replaced.enter_context(initialize_config_dir(str(conf_folder().absolute()), version_base="1.3"))
        replaced.enter_context(collecting_later())
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Generator[None]:
    kept = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, kept)


def _plain(composed: DictConfig) -> dict[str, Any]:
    with open_dict(composed):
        composed.pop("hydra", None)  # its parts resolve in Hydra's own jobs alone
        composed.pop(SETTINGS, None)  # of a search, no part of a run
    as_written: Any = OmegaConf.to_container(composed, resolve=False, throw_on_missing=False)
    untrusted_options.require_bounded_references(as_written)
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    assert isinstance(plain, dict)
    remember_secrets(as_written, plain)
    return {str(name): value for name, value in plain.items()}


def _scaled(config: dict[str, Any], overrides: Sequence[str], *, allowed: Sequence[str] = ()) -> dict[str, Any]:
    if config.get("scaling", {}).get("_target_") == UNSCALED:
        return config
    from lmtrain.run.scaling import scaled  # checks its input by pydantic: most commands do without

    return scaled(config, overrides, allowed=allowed)


def _refuse_search(composed: DictConfig) -> None:
    """Refuse a search without -m, or in a command that does not search; and settings of a search without one."""
    if SEARCH in composed.hydra.sweeper:
        raise ConfigurationError("hydra/sweeper=optuna searches for values: lmtrain train with -m starts it.")
    for word in composed.hydra.overrides.task:
        if key_of(word).startswith(f"{SETTINGS}."):
            also = " (a grid, -m alone, has sweep.parallel, sweep.launcher and sweep.slurm)"
            raise ConfigurationError(f"{word} is a setting of a search{also}; add hydra/sweeper=optuna and -m.")


def _require_parts(composed: DictConfig, overrides: Iterable[str]) -> None:
    """Refuse a config without one of its parts, or with one value in the place of a part."""
    shared = shared_keys(conf_folder() / "train.yaml")
    for word in overrides:
        name, value = key_of(word), word.partition("=")[2]
        if word.startswith("~") and "." not in name:
            raise ConfigurationError(f"{word}: every run has {name}; leave this word out.")
        keys = [key for key in shared if key.startswith(f"{name}.")]
        if keys and name in composed and not OmegaConf.is_dict(composed[name]):
            raise ConfigurationError(f"{word}: {name} has the keys {', '.join(keys)}; write {keys[0]}={value}.")


@contextmanager
def _worded(arguments: Arguments, *, config_name: str) -> Generator[None]:
    """Turn the refusals of Hydra and OmegaConf into our own messages."""
    try:
        yield
    except ConfigurationError:
        raise
    except (HydraException, OmegaConfBaseException) as problem:
        raise _translated(problem, arguments, config_name=config_name) from problem
    except yaml.YAMLError as problem:
        raise ConfigurationError(f"an option is not valid YAML: {' '.join(str(problem).split())}.") from problem
    except ValueError as problem:  # a word, or an option's bytes or digits, that a library cannot read
        own = f"--config-dir {arguments.config_dir}: " if arguments.config_dir else ""
        reason = str(problem).partition(" : Override(")[0]
        raise ConfigurationError(f"{own}{' '.join(arguments.overrides)}: cannot be read: {reason}.") from problem


def _translated(problem: Exception, arguments: Arguments, *, config_name: str) -> ConfigurationError:
    if isinstance(problem, MissingConfigException):
        group, _, option = str(problem.missing_cfg_file).partition("/")  # a typed option may be a path
        if group == "hydra":
            return ConfigurationError(f"hydra/{option.replace('/', '=')}: must be basic (a grid) or optuna (a search).")
        options = problem.options or option_names(group)  # none of a list
        return ConfigurationError(suggestions.unknown_option(group, option, options))
    if SEVERAL_VALUES in str(problem):
        typed = str(problem).partition("'")[2].partition("'")[0]
        first = typed.partition(",")[0]
        return ConfigurationError(f"{typed} has several values; choose one, as {first}, or add -m for a run of each.")
    if isinstance(problem, ConfigCompositionException) and (word := _refused_override(problem)):
        return ConfigurationError(_unknown_key(word, arguments, config_name=config_name))
    if isinstance(problem, (InterpolationToMissingValueError, MissingMandatoryValue)):
        return no_value(str(problem).partition("Missing mandatory value: ")[2].split()[0])
    if isinstance(problem, OverrideParseException):
        return ConfigurationError(suggestions.unreadable(str(problem.override)))
    return ConfigurationError(" ".join(str(problem).split()))


def _refused_override(problem: ConfigCompositionException) -> str | None:
    found = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", str(problem))
    return found.group(1) if found else None


def _unknown_key(word: str, arguments: Arguments, *, config_name: str) -> str:
    key = word.partition("@")[0]
    typed = next((text for text in arguments.overrides if text.lstrip("+~").partition("=")[0] == key), word)
    main = conf_folder() / f"{config_name}.yaml"
    heads = {*default_options(main), *(each.partition(".")[0] for each in shared_keys(main))}
    if key.partition(".")[0] not in heads and suggestions.is_known_head(key):
        return f"{typed} has no effect here: it is a setting of training; leave it out."
    config = _chosen(key, arguments, config_name=config_name)
    return suggestions.unknown_key(key, typed=typed, config=config)


def _chosen(key: str, arguments: Arguments, *, config_name: str) -> dict[str, Any]:
    """Return the config of the options alone, without the values next to a refused key; empty where it fails too."""
    groups = {path.name for path in group_folders()}
    chosen = [text for text in arguments.overrides if text.partition("=")[0] in groups - {key}]
    try:
        with _our_configs():
            return _plain(compose(config_name, overrides=chosen))
    except HydraException:
        return {}
