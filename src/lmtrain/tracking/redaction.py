"""Keep secrets out of everything that is logged: values of secret-sounding keys, and passwords in addresses.

In language modelling a token is usually not a secret: tokens, tokenizer, flops_per_token and bos_token stay readable.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

REDACTED = "[redacted]"

_SECRET = re.compile(
    r"secret|passw|credential|bearer|(?:^|_)(?:api|access|private|auth)_?(?:key|token)|(?:^|_)(?:key|token)$"
)
_NOT_SECRET = re.compile(
    r"(?:^|_)(?:per|bos|eos|pad|padding|unk|unknown|mask|sep|cls|special|stop|begin|end|start|text)_token$"
    r"|(?:^|_)(?:text|sort|metric|monitor|column|public|primary|foreign)_key$"
)
_USERINFO = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
_KEY = r"(?<![\w.$-])(?<!\$\{)(?P<key>[A-Za-z_][\w.\-/@]*)(?P<quote>['\"]?)(?P<separator>[ \t]*[:=][ \t]*)"
_VALUE = r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^,}\]\n]+)"
_HARMLESS = re.compile(r"\$\{[^}]*\}?|null|true|false|None|True|False|\[redacted|\|.*|>.*", re.DOTALL)


def is_secret_key(key: str) -> bool:
    """Tell whether the value under this key may be a secret; key is one name or a dotted path."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.rsplit(".", 1)[-1]).replace("-", "_").lower()
    return bool(_SECRET.search(name)) and not _NOT_SECRET.search(name)


def redact_addresses(text: str) -> str:
    """Cut the user and password out of addresses: postgresql://me:pw@host -> postgresql://[redacted]@host."""
    return _USERINFO.sub(rf"\g<scheme>{REDACTED}@", text)


def redact(value: object, key: str = "") -> object:
    """Return a copy of plain nested data without its secrets; numbers, flags and None are never secret."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {name: redact(item, str(name)) for name, item in items.items()}
    if isinstance(value, str):
        return REDACTED if is_secret_key(key) and not _is_harmless(value) else redact_addresses(value)
    if isinstance(value, Sequence):
        return [redact(item, key) for item in cast("Sequence[object]", value)]
    return value


def redact_text(text: str) -> str:
    """Redact the lines of YAML, of overrides or of a diff: the values in "key: value" and "key=value"."""
    keys = {match["key"] for match in re.finditer(_KEY, text) if is_secret_key(match["key"])}
    for key in keys:
        assignment = re.compile(_KEY.replace(r"[A-Za-z_][\w.\-/@]*", re.escape(key)) + _VALUE)
        text = assignment.sub(_without_value, text)
    return redact_addresses(text)


def _without_value(match: re.Match[str]) -> str:
    if _is_harmless(match["value"].strip()):
        return match[0]
    return f"{match['key']}{match['quote']}{match['separator']}{REDACTED}"


def _is_harmless(value: str) -> bool:
    return not value or bool(_HARMLESS.fullmatch(value)) or _is_number(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
