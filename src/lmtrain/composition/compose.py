"""Run a function on a composed config, or on each of a sweep, through Hydra; word its refusals as ours.

Hydra's own entry point composes twice to find out whether it is asked for a sweep. One config without any of its flags
is composed here, once, which halves the time of a short command.
"""

import os
import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from lmtrain.accounting.scaling import UNSCALED
from lmtrain.composition.arguments import Arguments
from lmtrain.composition.lean_compose import lean_compose
from lmtrain.composition.paths import conf_folder
from lmtrain.composition.unknown_words import unknown_key, unknown_option
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.atomic_files import write_text
from lmtrain.tracking.redaction import redact_text
from lmtrain.tracking.secret_values import remember_secrets

SEVERAL_VALUES: Final = "Ambiguous value for argument"

Task = Callable[[dict[str, Any], "Choices"], None]


class Choices:
    """What Hydra knows about one composed config: its overrides, the options chosen, and whether it is a trial."""

    def __init__(self, state: Any) -> None:
        """Read the `hydra` node of a composed config."""
        self.overrides: list[str] = list(state.overrides.task)
        self.options: dict[str, str] = {name: str(option) for name, option in state.runtime.choices.items()}
        self.is_trial: bool = state.mode == RunMode.MULTIRUN


def for_each_config(task: Task, arguments: Arguments, *, config_name: str, program: str) -> None:
    """Compose and call `task(config, choices)` once, or once a trial under -m; Hydra's own flags work too.

    Raises:
        ConfigurationError: The command line does not compose.
    """

    def entry(composed: DictConfig, state: Any) -> None:
        choices = Choices(state)
        if config_name == "train":
            _require_every_group(choices.overrides)
        plain = _plain(composed)
        if choices.is_trial:
            _redact_sweep(Path(state.sweep.dir))
        task(_scaled(plain, choices.overrides, allowed=arguments.allowed_targets), choices)

    try:
        one = None if arguments.flags else _one_config(arguments.hydra, config_name=config_name)
        if one is None:
            _through_hydra(entry, arguments.hydra, config_name=config_name, program=program)
        else:
            entry(*one)
    except (HydraException, OmegaConfBaseException) as problem:
        raise _translate(problem, arguments, config_name=config_name) from problem
    except ValueError as problem:
        raise _not_a_word(problem, arguments) or problem from problem


def _require_every_group(overrides: list[str]) -> None:
    """Refuse a run without one of its groups; a key below one, as ~callbacks.validation, may go."""
    for word in overrides:
        name = word.removeprefix("~").partition("=")[0]
        if word.startswith("~") and "." not in name:
            raise ConfigurationError(f"{word}: every run has {name}; nearest valid: without this word.")


def _one_config(words: list[str], *, config_name: str) -> tuple[DictConfig, Any] | None:
    """Compose once, the `hydra` node apart; None where it is a sweep without being typed as one, or may be."""
    try:
        with _our_configs():
            composed = compose(config_name, overrides=words, return_hydra_config=True)
    except ConfigCompositionException as problem:
        if SEVERAL_VALUES in str(problem):
            return None
        raise
    state = composed.hydra
    if state.mode == RunMode.MULTIRUN:
        return None
    with open_dict(composed):
        del composed["hydra"]
    return composed, state


def _through_hydra(
    entry: Callable[[DictConfig, Any], None], words: list[str], *, config_name: str, program: str
) -> None:
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets its exceptions through to us
    sys.argv = [program, *words]
    failures: list[BaseException] = []

    def kept(composed: DictConfig) -> None:
        try:  # Hydra would print a heading of its own over what it passes on
            entry(composed, HydraConfig.get())
        except Exception as failure:  # noqa: BLE001  # raised again below
            failures.append(failure)

    run = hydra.main(config_path=str(conf_folder()), config_name=config_name, version_base="1.3")(kept)
    try:
        with lean_compose():
            run()
    except ValueError as problem:  # flags that exclude one another
        raise ConfigurationError(str(problem)) from problem
    if failures:
        raise failures[0]


def _redact_sweep(folder: Path) -> None:
    """Take the secrets out of the file that Hydra keeps of a sweep, which holds every word as typed."""
    path = folder / "multirun.yaml"
    if path.exists() and (redacted := redact_text(path.read_text())) != path.read_text():
        write_text(path, redacted)


@contextmanager
def _our_configs() -> Generator[None]:
    GlobalHydra.instance().clear()
    with lean_compose(), initialize_config_dir(str(conf_folder().absolute()), version_base="1.3"):
        yield


def compose_config(overrides: list[str], *, config_name: str = "train") -> dict[str, Any]:
    """Compose a config without running anything: for tests, benchmarks and notebooks."""
    with _our_configs():
        return _scaled(_plain(compose(config_name, overrides=overrides)), overrides)


def _plain(composed: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    assert isinstance(plain, dict)
    remember_secrets(OmegaConf.to_container(composed, resolve=False, throw_on_missing=False), plain)
    return {str(name): value for name, value in plain.items() if name != "hydra"}


def _scaled(config: dict[str, Any], overrides: Sequence[str], *, allowed: Sequence[str] = ()) -> dict[str, Any]:
    if config.get("scaling", {}).get("_target_") == UNSCALED:
        return config
    from lmtrain.composition.scaling import scaled  # checks what it reads, by pydantic: most commands do without

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
        return ConfigurationError(f"{key} has no value; set it on the command line: {key}=...")
    if isinstance(problem, OverrideParseException):
        return ConfigurationError(
            f"{problem.override} is not KEY=VALUE or GROUP=OPTION: {problem.message.splitlines()[0]}."
        )
    return ConfigurationError(" ".join(str(problem).split()))


def _several_values(problem: str) -> str:
    typed = problem.partition("'")[2].partition("'")[0]
    key, _, values = typed.partition("=")
    first = values.partition(",")[0]
    return f"{typed} has several values; choose one, as in {key}={first}, or add -m for a run of each."


def _unknown_option(problem: MissingConfigException) -> str:
    group, _, option = str(problem.missing_cfg_file).rpartition("/")
    if not problem.options:
        return f"There is no config {problem.missing_cfg_file} in {conf_folder()}."
    return unknown_option(group, option, problem.options)


def _refused_override(problem: ConfigCompositionException) -> str | None:
    found = re.search(r"Could not override '([^']+)'", str(problem))
    return found.group(1) if found else None


def _unknown_key(word: str, arguments: Arguments, *, config_name: str) -> str:
    key = word.partition("@")[0]
    typed = next((text for text in arguments.overrides if text.lstrip("+~").startswith(f"{key}=")), word)
    groups = {path.name for path in conf_folder().iterdir() if path.is_dir()}
    chosen = [text for text in arguments.overrides if text.partition("=")[0] in groups - {key}]
    try:
        with _our_configs():
            config = _plain(compose(config_name, overrides=chosen))
    except HydraException:
        config = {}
    return unknown_key(key, typed=typed, config=config, conf=conf_folder())


def _not_a_word(problem: ValueError, arguments: Arguments) -> ConfigurationError | None:
    """Tell of an option that is no word, such as precision=16, which Hydra does not say by name."""
    if "Config group override must be" not in str(problem):
        return None
    for text in arguments.overrides:
        group, _, option = text.lstrip("+~").partition("=")
        options = [path.stem for path in (conf_folder() / group).glob("*.yaml")] if group else []
        if options and option not in options and not option.startswith("["):
            return ConfigurationError(unknown_option(group, option, options))
    return None
