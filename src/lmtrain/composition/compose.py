"""Run a function on a composed config, or on each of a sweep, through Hydra; word its refusals as ours."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from lmtrain.accounting.scaling import UNSCALED
from lmtrain.composition.arguments import Arguments
from lmtrain.composition.paths import conf_folder
from lmtrain.composition.source_signatures import setting_names
from lmtrain.errors import ConfigurationError, suggest

Task = Callable[[dict[str, Any], "Choices"], None]


class Choices:
    """What Hydra knows about one composed config: its overrides, the options chosen, and whether it is a trial."""

    def __init__(self) -> None:
        """Read Hydra's state of the job that is being composed now."""
        state = HydraConfig.get()
        self.overrides: list[str] = list(state.overrides.task)
        self.options: dict[str, str] = {name: str(option) for name, option in state.runtime.choices.items()}
        self.is_trial: bool = state.mode == RunMode.MULTIRUN


def for_each_config(task: Task, arguments: Arguments, *, config_name: str, program: str) -> None:
    """Compose and call `task(config, choices)` once, or once a trial under -m; Hydra's own flags work too.

    Raises:
        ConfigurationError: The command line does not compose.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets its exceptions through to us
    sys.argv = [program, *arguments.hydra]

    failures: list[BaseException] = []

    def entry(composed: DictConfig) -> None:
        try:  # Hydra would print a heading of its own over what it passes on
            choices = Choices()
            task(_scaled(_plain(composed), choices.overrides, allowed=arguments.allowed_targets), choices)
        except Exception as failure:  # noqa: BLE001  # raised again below
            failures.append(failure)

    run = hydra.main(config_path=str(conf_folder()), config_name=config_name, version_base="1.3")(entry)
    try:
        run()
        if failures:
            raise failures[0]
    except (HydraException, OmegaConfBaseException) as problem:
        raise _translate(problem, arguments, config_name=config_name) from problem


def compose_config(overrides: list[str], *, config_name: str = "train") -> dict[str, Any]:
    """Compose a config without running anything: for tests, benchmarks and notebooks."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_folder().absolute()), version_base="1.3"):
        return _scaled(_plain(compose(config_name, overrides=overrides)), overrides)


def _plain(composed: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=False)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items() if name != "hydra"}


def _scaled(config: dict[str, Any], overrides: Sequence[str], *, allowed: Sequence[str] = ()) -> dict[str, Any]:
    if config.get("scaling", {}).get("_target_") == UNSCALED:
        return config
    from lmtrain.composition.scaling import scaled  # checks what it reads, by pydantic: most commands do without

    return scaled(config, overrides, allowed=allowed)


def _translate(problem: Exception, arguments: Arguments, *, config_name: str) -> Exception:
    if isinstance(problem, MissingConfigException):
        return ConfigurationError(_unknown_option(problem))
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


def _unknown_option(problem: MissingConfigException) -> str:
    group, _, option = str(problem.missing_cfg_file).rpartition("/")
    options = sorted(problem.options or [])
    if not options:
        return f"There is no config {problem.missing_cfg_file} in {conf_folder()}."
    return f"{group}={option}: there is no such option; {group} has {', '.join(options)}.{suggest(option, options)}"


def _refused_override(problem: ConfigCompositionException) -> str | None:
    found = re.search(r"Could not override '([^']+)'", str(problem))
    return found.group(1) if found else None


def _unknown_key(word: str, arguments: Arguments, *, config_name: str) -> str:
    key = word.partition("@")[0]
    typed = next((text for text in arguments.overrides if text.lstrip("+~").startswith(f"{key}=")), word)
    groups = {path.name for path in conf_folder().iterdir() if path.is_dir()}
    chosen = [text for text in arguments.overrides if text.partition("=")[0] in groups - {key}]
    try:
        config = compose_config(chosen, config_name=config_name)
    except HydraException:
        config = {}
    if _is_setting(config, key):
        return f"{typed}: the chosen option does not name {key}, which it may have; write +{typed}."
    known = _leaf_keys(config)
    if key in groups:  # there are such options, for another command
        children = [name.rpartition(".")[2] for name in known if name.startswith(f"{key}.")]
        has = f"; {key} has the keys {', '.join(children)}" if children else ""
        return f"{typed} has no effect: there is no choice of {key} here{has}."
    parent = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == parent]
    near = suggest(key, siblings) or suggest(key, [*known, *groups])
    listed = f"; {parent} has {', '.join(name.rpartition('.')[2] for name in siblings)}" if parent and siblings else ""
    return f"{typed}: there is no key {key}{listed}.{near}"


def _is_setting(config: Mapping[str, Any], key: str) -> bool:
    """Tell whether what a node builds takes this key, which has to be added then."""
    *path, name = key.split(".")
    node: Any = config
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return bool(path) and isinstance(node, dict) and name in setting_names(str(node.get("_target_", "")))


def _leaf_keys(config: dict[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in config.items():
        if name.startswith("_"):
            continue
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += _leaf_keys(value, f"{prefix}{name}.")
    return keys
