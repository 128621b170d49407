"""Plain values of a file, possibly another person's, as overrides: read, checked, never composed."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import DataError

WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")
PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_./-]+")
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def value_words(group: str, settings: Any, *, source: Path) -> list[str]:
    """Return an override for each value of a group's settings in the file `source`.

    Raises:
        DataError: They are no plain settings: other text than a word could be an interpolation.
    """
    if not isinstance(settings, dict):
        raise DataError(f"{source} has no settings of {group}; make it again.")
    return [f"++{key}={value}" for key, value in _leaves(group, settings, source)]


def _leaves(key: str, node: Mapping[str, Any], source: Path) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if not NAME.fullmatch(name):
            raise DataError(f"{source}: {key} has the setting {name!r}, which is no name; make it again.")
        if isinstance(value, dict):
            yield from _leaves(f"{key}.{name}", value, source)
        else:
            yield f"{key}.{name}", _word(value, key=f"{key}.{name}", source=source)


def _word(value: Any, *, key: str, source: Path) -> str:
    if isinstance(value, list):
        return f"[{','.join(_word(item, key=key, source=source) for item in value)}]"
    if isinstance(value, str) and not WORD.fullmatch(value):
        raise DataError(f"{source}: {key}={value!r} is no setting; make it again.")
    return value if isinstance(value, str) else json.dumps(value)


def tokenizer_words(path: Path) -> list[str]:
    """Return the overrides for the tokenizer of a folder, none where there is no such folder."""
    if not path.is_dir():
        return []
    from lmtrain.tokenizers.loading import load_tokenizer

    size = load_tokenizer(path).vocab_size
    return ["tokenizer=folder", f"tokenizer.path={path_value(path)}", f"tokenizer.vocab_size={size}"]


def path_value(path: Path) -> str:
    """Return a path as an override's value: in quotes where Hydra would read some character otherwise."""
    if PLAIN_PATH.fullmatch(str(path)):
        return str(path)
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"'{quoted}'"
