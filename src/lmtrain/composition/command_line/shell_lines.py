"""Lines of shell in a config: of a folder of options, which may be anybody's, only those typed too are run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lmtrain.errors import ConfigurationError

SHELL: Final = "engine.setup"  # of the stages of a preparation


def refuse_untyped_shell(config: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Refuse a line of shell of a file.

    Raises:
        ConfigurationError: Its key is not typed.
    """
    keys = {word.lstrip("+").partition("=")[0] for word in typed}
    for key, value in _leaves(config, ""):
        if f".{key}".endswith(f".{SHELL}") and value and not {key, SHELL} & keys:
            raise ConfigurationError(
                f"{key} is a line of shell, which --config-dir does not decide; type it: '+{SHELL}=...'."
            )


def _leaves(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
