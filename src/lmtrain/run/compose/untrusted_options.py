"""Options of a folder, perhaps a stranger's: bounded before Hydra reads them, and unable to run code or send things.

Hydra copies what an alias of YAML stands for, OmegaConf what `${...}` does: a few lines of either can be gigabytes.
Settings annotated `TypedAlone` (lines of shell, a program's words, a folder of compiled code, an address to send to)
count only where they are typed. No file gets a secret of this environment.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.signatures import default_settings, typed_alone
from lmtrain.storage import foreign_yaml
from lmtrain.storage.foreign_json import MAX_DEPTH, TooMuch
from lmtrain.tracking.redaction import REMEMBERED, is_secret_variable, is_telling, passwords_in, redact_override

MAX_FILES: Final = 10_000
MAX_SIZE: Final = 1 << 22  # characters and values of a config with everything written out
MAX_STEPS: Final = 50  # from a reference to its reference and so on
BRACKET: Final = re.compile(r"[(){}\[\]]")
REFERENCE: Final = re.compile(r"\$\{(\.*)([A-Za-z_][\w.]*)\}")
# In the words of a pipeline's file, in any spelling: a flag's letters as argparse takes them, a setting's own name.
IN_A_WORD: Final = re.compile(
    r"(?<![\w-])--al|oc\.env|\b(?:setup|sbatch|slurm\w*|tracking_uri|repository|address|words)\b\W*[.:=]"
    r"|\brun\.cache\b|\brun\b\W*=.*\bcache\b\W*:"
)


def require_bounded_files(folder: Path) -> None:
    """Refuse an option that is not a file, is nested too deeply, or is too large with its aliases written out."""
    for number, path in enumerate(folder.rglob("*.yaml")):
        if number == MAX_FILES:
            raise ConfigurationError(f"--config-dir {folder} has more than {MAX_FILES:,} files; name one of options.")
        if path.exists() and not (path.is_file() or path.is_dir()):  # Hydra would wait for a pipe's end
            raise ConfigurationError(_no_option(path, "it is a pipe, a socket or a device"))
        try:
            foreign_yaml.read(path)
        except TooMuch as problem:
            raise ConfigurationError(_no_option(path, str(problem))) from problem
        except (OSError, ValueError):
            continue  # reported where the option is chosen


def _no_option(path: Path, reason: str) -> str:
    return f"{path} cannot be an option: {reason}; correct or remove it."


def require_bounded_words(words: Iterable[str]) -> None:
    """Refuse an override nested too deeply, of a pipeline's file perhaps: Hydra's parser recurses."""
    for word in words:
        depth = 0
        for bracket in BRACKET.findall(word):
            depth += 1 if bracket in "{[(" else -1
            if depth > MAX_DEPTH:
                key = word.partition("=")[0][:80]
                raise ConfigurationError(f"{key}: its value is nested more than {MAX_DEPTH} deep; write it flat.")


def require_bounded_references(config: Mapping[str, Any]) -> None:
    """Refuse a config, its references as written, that grows too large when they are written out."""
    _Sizes(config).of(config, (), ())


class _Sizes:
    """Sizes of a config's values with everything written out, each computed once."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._known: dict[tuple[str, ...], int] = {}

    def of(self, node: Any, place: tuple[str, ...], before: tuple[tuple[str, ...], ...]) -> int:
        if isinstance(node, (dict, list)):
            items = node.items() if isinstance(node, dict) else enumerate(node)
            size = 1 + sum(self.of(below, (*place, str(name)), before) for name, below in items)
        elif isinstance(node, str):
            size = len(node) + sum(
                self._at(_target(dots, name, place), before) for dots, name in REFERENCE.findall(node)
            )
        else:
            size = 1
        if size > MAX_SIZE:
            raise ConfigurationError(f"{'.'.join(place)} is too large with its references written out; shorten it.")
        return size

    def _at(self, place: tuple[str, ...], before: tuple[tuple[str, ...], ...]) -> int:
        if place in before or len(before) > MAX_STEPS:
            raise ConfigurationError(f"{'.'.join(place)}: its references lead round in a circle, or too far.")
        if place not in self._known:
            node: Any = self._config
            for name in place:
                node = node.get(name) if isinstance(node, dict) else None
            self._known[place] = self.of(node, place, (*before, place))
        return self._known[place]


def _target(dots: str, name: str, place: tuple[str, ...]) -> tuple[str, ...]:
    """Return the place of a reference: from the root, or with dots from the node that holds it, as OmegaConf has it."""
    base = place[: len(place) - len(dots)] if dots else ()
    return (*base, *name.split("."))


def refuse_untyped(config: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Refuse a setting of a file that only a person decides."""
    words = [word.lstrip("+").partition("=") for word in typed]
    keys = {key for key, _, _ in words} | {f"{key}." for key, _, value in words if value.startswith("{")}
    secrets = _secrets()
    for key, value, is_alone in _settings(config, "", is_alone=False):
        if _is_typed(key, keys) or (is_alone and _goes_to_a_typed_server(value)):
            continue
        if is_alone:
            raise ConfigurationError(
                f"{redact_override(f'{key}={value}')} cannot be set by --config-dir or a continued run: it runs code, "
                f"or decides where things are sent; if you wrote it yourself, type it: '+{key}=...'."
            )
        if name := next((name for secret, name in secrets.items() if secret in str(value)), None):
            raise ConfigurationError(f"{key} holds {name} of this environment, which a file does not get; type it.")


def _settings(node: Any, key: str, *, is_alone: bool) -> Iterator[tuple[str, Any, bool]]:
    """Yield each value with its key, and whether it is typed alone; defaults of such are left out."""
    if isinstance(node, list):
        for item in node:
            yield from _settings(item, key, is_alone=is_alone)
        return
    if not isinstance(node, dict):
        if node is not None:
            yield key, node, is_alone
        return
    target = str(node.get("_target_", ""))
    alone, defaults = typed_alone(target), default_settings(target)
    for name, value in node.items():
        if name not in alone or value != defaults.get(name):
            place = f"{key}.{name}" if key else str(name)
            yield from _settings(value, place, is_alone=is_alone or name in alone)


def _is_typed(key: str, typed: set[str]) -> bool:
    """Return whether a key, or a node around it, is typed; a group's own key stands for all that use the group."""
    inner = (one for one in typed if "." in one)
    return key in typed or any(key.endswith(f".{one}") or (one[-1] == "." and key.startswith(one)) for one in inner)


def _goes_to_a_typed_server(value: Any) -> bool:
    from lmtrain.tracking.mlflow.client import SQLITE, is_typed_server  # of folders of options alone

    return isinstance(value, str) and (value.startswith(SQLITE) or is_typed_server(value))


def _secrets() -> dict[str, str]:
    """Return the secrets of the environment, with their variables."""
    return {
        value: name
        for name, value in os.environ.items()
        if name != REMEMBERED and is_telling(value) and (is_secret_variable(name) or passwords_in(value))
    }
