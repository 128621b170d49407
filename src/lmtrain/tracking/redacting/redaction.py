"""Keep secrets out of everything written, sent or printed.

A secret is known by its form (secret_patterns), by its name (secret_keys), or by its value, present in the environment
too (secret_values). In data, a value of the environment becomes ${oc.env:NAME} again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TextIO, cast

from lmtrain.tracking.redacting.secret_keys import is_certain_key, is_secret_key
from lmtrain.tracking.redacting.secret_patterns import REDACTED, redact_patterns
from lmtrain.tracking.redacting.secret_values import secret_values

_KEY = r"(?<![\w.$])(?<!\w-)(?<!\$\{)(?P<key>[A-Za-z_][\w.\-/@]*)(?P<quote>['\"]?\]?)(?P<separator>[ \t]*[:=][ \t]*)"
_VALUE = r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?<=[^ \t:]=)[^,}\]\s]+|[^,}\]\n]+)"
_HARMLESS = re.compile(r"\$\{[^}]*\}?|null|true|false|None|True|False|\[redacted\]?|\|.*|>.*", re.DOTALL)
_CODE = re.compile(  # a type, a look into the environment, a call: none of them is the secret itself
    r"(?:str|bytes|bool|int|object)(?:$|[\s|)=].*)|os\.(?:environ|getenv)\W.*|[A-Za-z_][\w.]*\(.*", re.DOTALL
)
_RANDOM = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w+/=.~-]{16,}")
_FLAG = r"(?P<before>(?<![\w-])--(?P<key>[\w-]+)[ \t]+)(?P<value>[^\s'\"-][^\s]*)"


def redact(value: Any, key: str = "") -> Any:
    """Return a copy of plain nested data without its secrets; numbers, flags and None are never secret."""
    return _redact(value, key, secret_values())


def redact_override(word: str) -> str:
    """Redact one word of a command line, KEY=VALUE."""
    key, separator, value = word.partition("=")
    return f"{key}{separator}{redact(value, key.lstrip('+~'))}" if separator else redact_text(word)


def redact_text(text: str) -> str:
    """Redact text of any kind: a diff, a log, a message, with the values in "key: value" and "key=value"."""
    for secret, _ in secret_values():
        text = text.replace(secret, REDACTED)
    text = redact_patterns(text)
    keys = {match["key"] for match in re.finditer(_KEY, text) if is_secret_key(match["key"])}
    for key in sorted(keys):
        assignment = _KEY.replace(r"[A-Za-z_][\w.\-/@]*", re.escape(key)) + _VALUE
        text = re.sub(assignment, _without_value, text)
    return re.sub(_FLAG, _without_argument, text)


class RedactedStream:
    """A text stream without secrets; all else of it is the stream below, with whole writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text without its secrets; return how many characters were taken."""
        self._stream.write(redact_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Take everything but `write` from the stream below."""
        return getattr(self._stream, name)


def _redact(value: Any, key: str, secrets: list[tuple[str, str]]) -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {name: _redact(item, str(name), secrets) for name, item in items.items()}
    if isinstance(value, str):
        for secret, variable in secrets:
            value = value.replace(secret, f"${{oc.env:{variable}}}" if variable else REDACTED)
        return REDACTED if is_secret_key(key) and not _is_harmless(value) else redact_patterns(value)
    if isinstance(value, Sequence):
        return [_redact(item, key, secrets) for item in cast("Sequence[object]", value)]
    return value


def _without_value(match: re.Match[str]) -> str:
    value = match["value"].strip()
    if _is_harmless(value) or _is_code(match["key"], value, is_tight=match["separator"] == "="):
        return match[0]
    return f"{match['key']}{match['quote']}{match['separator']}{REDACTED}"


def _without_argument(match: re.Match[str]) -> str:
    is_kept = not is_certain_key(match["key"]) or _is_harmless(match["value"])
    return match[0] if is_kept else f"{match['before']}{REDACTED}"


def _is_code(key: str, value: str, *, is_tight: bool) -> bool:
    if is_certain_key(key):
        return not is_tight and bool(_CODE.fullmatch(value))
    return not _RANDOM.fullmatch(value.strip("'\""))  # `key` and `token` are names of anything


def _is_harmless(value: str) -> bool:
    bare = value.strip("'\"")
    return not bare or bool(_HARMLESS.fullmatch(bare)) or _is_number(bare)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
