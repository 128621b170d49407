"""Secrets without a known form: values of the environment's variables, and of a config.

The environment also keeps them for a run's child processes: a file would outlive the run, and other people can read a
command line.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from lmtrain.tracking.redacting.secret_keys import is_secret_key, is_secret_variable
from lmtrain.tracking.redacting.secret_patterns import passwords_in

REMEMBERED: Final = "LMTRAIN_SECRETS"  # JSON: {value: the variable that it comes from, or ""}
REFERENCE: Final = re.compile(r"\$\{oc\.env:\s*['\"]?(?P<name>\w+)['\"]?\s*(?:,[^{}]*)?\}")

MINIMUM_CHARACTERS = 8
MINIMUM_LOWER_CASE = 12  # a shorter word, such as postgres, stands elsewhere too
MINIMUM_DIGITS = 16


def remember_secrets(unresolved: object, config: object) -> None:
    """Keep a composed config's values from the environment, and its typed passwords and keys."""
    names = {match["name"] for text in _texts(unresolved) for match in REFERENCE.finditer(text)}
    found = dict.fromkeys(_typed(config, key=""), "")
    found |= {os.environ[name]: name for name in sorted(names) if name in os.environ}
    kept = {value: name for value, name in found.items() if is_telling(value)}
    if kept:
        os.environ[REMEMBERED] = json.dumps({**_remembered(), **kept})


def secret_values() -> list[tuple[str, str]]:
    """Return each known secret, longest first, with its variable, or ""."""
    found = {value: name for name, value in os.environ.items() if name != REMEMBERED and is_secret_variable(name)}
    addresses = {word: "" for value in os.environ.values() for word in passwords_in(value)}
    values = {value: name for value, name in {**addresses, **found}.items() if is_telling(value)} | _remembered()
    return sorted(_as_written(values), key=lambda pair: -len(pair[0]))


def resolve_references(value: Any) -> Any:
    """Return a copy of plain nested data with ${oc.env:NAME} replaced by its value, where the environment has it."""
    if isinstance(value, dict):
        return {name: resolve_references(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [resolve_references(each) for each in cast("list[Any]", value)]
    if isinstance(value, str) and "${oc.env:" in value:
        return REFERENCE.sub(lambda match: os.environ.get(match["name"], match[0]), value)
    return value


def is_telling(value: str) -> bool:
    """Return whether a value is long and odd enough to be looked for everywhere: no number, word or path of a file."""
    text = value.strip()
    if len(text) < MINIMUM_CHARACTERS or (text.islower() and text.isalpha() and len(text) < MINIMUM_LOWER_CASE):
        return False
    digits = text.lstrip("+-").replace(".", "", 1)
    if digits.isdigit() and len(digits) < MINIMUM_DIGITS:
        return False
    try:
        return not Path(text).exists()
    except OSError:  # too long for a path
        return True


def _as_written(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for value, name in values.items():
        text = value.strip()
        yield text, name
        others = {quote(text, safe=""), unquote(text), json.dumps(text)[1:-1]} - {text}
        yield from ((other, "") for other in others)


def _typed(value: object, *, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield from _typed(item, key=str(name))
    elif isinstance(value, str):
        yield from [value] if is_secret_key(key) else passwords_in(value)
    elif isinstance(value, Sequence):
        for item in cast("Sequence[object]", value):
            yield from _typed(item, key=key)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in cast("Mapping[object, object]", value).values():
            yield from _texts(item)
    elif isinstance(value, Iterable):
        for item in cast("Iterable[object]", value):
            yield from _texts(item)


def _remembered() -> dict[str, str]:
    return json.loads(os.environ.get(REMEMBERED, "{}"))
