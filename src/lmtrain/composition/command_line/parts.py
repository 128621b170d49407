"""The parts of a run on the command line: none is taken away, nor replaced by one value."""

from collections.abc import Iterable

from omegaconf import DictConfig, OmegaConf

from lmtrain.composition.command_line.paths import conf_folder
from lmtrain.errors import ConfigurationError


def require_parts(composed: DictConfig, overrides: Iterable[str]) -> None:
    """Refuse a config without one of its parts; a key below one, as ~callbacks.validation, may go.

    Raises:
        ConfigurationError: A part is gone, or is one value in the place of several keys.
    """
    for word in overrides:
        name, _, value = word.lstrip("+~").partition("=")
        if "." in name:
            continue
        if word.startswith("~"):
            raise ConfigurationError(f"{word}: every run has {name}; nearest valid: without this word.")
        if name in composed and not OmegaConf.is_dict(composed[name]) and (keys := _keys(name)):
            raise ConfigurationError(
                f"{word} is one value, and {name} has {', '.join(keys)}; write {name}.KEY={value}."
            )


def _keys(name: str) -> list[str]:
    """Return the keys of a part that has no options to choose from; nothing for a single value."""
    config = OmegaConf.to_container(OmegaConf.load(conf_folder() / "train.yaml"), resolve=False)
    part = config.get(name) if isinstance(config, dict) else None
    return [str(key) for key in part if key != "_target_"] if isinstance(part, dict) else []
