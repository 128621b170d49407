"""A value cut by the shell at a space, as one word or as paths of a list; a value in quotes for Hydra."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.bare_words import is_place, takes_paths
from lmtrain.run.compose.foreign.table import quoted
from lmtrain.run.compose.paths import key_of

AMOUNT: Final = re.compile(r"[\d.]+")
UNIT: Final = re.compile(r"[A-Za-z]{1,4}")
PATHS: Final = "source.paths"
PLAIN_WORD: Final = re.compile(r"[\w.+-]+")


def joined_words(last: str, rest: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return the words, not yet quoted, for an override and the words without a key right behind it.

    `own` are the other words of the command.
    """
    key, _, value = last.partition("=")
    whole = " ".join([value, *rest])
    if AMOUNT.fullmatch(value) and len(rest) == 1 and UNIT.fullmatch(rest[0]):
        return [f"{key}={value}{rest[0]}"]
    if key_of(last) == "run.name":
        return [f"{key}={'_'.join([value, *' '.join(rest).split()])}"]
    if key_of(last) == PATHS and not Path(whole).exists() and (value.startswith("[") or all(map(is_place, rest))):
        return [*([] if any(map(takes_paths, own)) else ["source=files"]), _list_of([value, *rest])]
    return [f"{key}={whole}"]


def in_a_shell(words: Sequence[str]) -> str:
    """Return words as a shell takes them."""
    return " ".join(shlex.quote(word) if " " in word else quoted(word) for word in words)


def unreadable(override: str) -> ConfigurationError:
    """Return the refusal of an override that Hydra cannot parse, with its value as a text or as a function's."""
    key, _, value = override.partition("=")
    if re.match(r"(interval|choice|range)\(", value):
        way = f"{key}=interval(LOW,HIGH) or choice(A,B)"
        return ConfigurationError(f"{override}: its value cannot be read; write {way}.")
    text = shlex.quote(f"{key}={in_quotes(value)}")
    return ConfigurationError(
        f"{override} is not KEY=VALUE or GROUP=OPTION: its value cannot be read. Brackets and quotes come in pairs, "
        f"and a value with other signs stands in quotes: {text}."
    )


def in_quotes(value: str) -> str:
    """Return a value as a text; a list with each of its items as one, a mapping with its lists and its own so."""
    items = _parts(value[1:-1])
    if items and value[0] == "[" and value[-1] == "]":
        return f"[{','.join(map(_text, items))}]"
    if items and value[0] == "{" and value[-1] == "}":
        return f"{{{', '.join(map(_entry, items))}}}"
    return _text(value)


def _entry(entry: str) -> str:
    """Return a mapping's `key: value`; a plain word is one without quotes."""
    key, colon, value = (part.strip() for part in entry.partition(":"))
    return f"{key}{colon} {value if PLAIN_WORD.fullmatch(value) else in_quotes(value)}" if colon else entry


def _text(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value if is_quoted else json.dumps(value, ensure_ascii=False)


def _parts(inside: str) -> list[str]:
    """Cut at the commas outside brackets and quotes; nothing where these are no pairs."""
    parts, depth, quote = [""], 0, ""
    for sign in inside:
        if sign in ("'", '"') and quote in ("", sign):
            quote = "" if quote else sign
        depth += 0 if quote else (sign in "[{") - (sign in "]}")
        if depth < 0:
            return []
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [] if depth or quote else [part.strip() for part in parts]


def _list_of(paths: Sequence[str]) -> str:
    items = [item for path in paths for item in path.strip("[], ").split(",") if item]
    return f"{PATHS}=[{','.join(items)}]"
