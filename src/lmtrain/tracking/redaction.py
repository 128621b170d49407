"""Keep secrets out of everything written, sent or printed.

A secret is known by its form (tokens of known services, private keys, passwords in addresses), by the name it is
assigned to, or by its value, which also stands in the environment. In data, a value of the environment becomes
${oc.env:NAME} again. The forms follow the services' documentation and the rules of gitleaks and detect-secrets
(https://github.com/gitleaks/gitleaks, https://github.com/Yelp/detect-secrets); hashes in hexadecimal stay.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TextIO, cast
from urllib.parse import quote, unquote

REDACTED: Final = "[redacted]"

# --- By form. Strings, compiled by `re` at their first use: a short command needs none of them.
TOKENS: Final = (
    r"\b(?:hf|api_org)_(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{16,}|\bhf_[a-z]{34}\b",  # Hugging Face
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b(?:[\s:,;|\"']{1,5}[A-Za-z0-9/+=]{40}(?![\w/+=]))?",  # AWS, with its secret
    r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}",  # GitHub, GitLab
    r"\b(?:sk|rk|pk)_(?:live|test|prod)_[A-Za-z0-9]{10,}|\bwhsec_[A-Za-z0-9+/=]{16,}",  # Stripe
    r"\bsk-(?=[\w-]*\d)[\w-]{16,}",  # OpenAI, Anthropic
    r"\bxox[a-z]-[A-Za-z0-9-]{10,}|\bxapp-\d-[A-Za-z0-9-]{10,}",  # Slack
    r"\bhooks\.slack\.com/(?:services|workflows|triggers)/[\w/+-]{20,}",
    r"\bdiscord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}",  # Discord
    r"\b[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",
    r"(?:(?<![\w:])|(?<=/bot))\d{8,10}:AA[\w-]{30,}",  # Telegram
    r"\bSG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
    r"\bpypi-[\w-]{16,}",  # PyPI
    r"\bwandb_v1_[\w-]{16,}",  # Weights & Biases
    r"\bAIza[\w-]{30,}",  # Google
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token, RFC 7519
)
AFTER_A_WORD: Final = (
    r"(?P<before>\b[Bb]earer[ \t]+)[\w.~+/=-]{8,}",
    r"(?P<before>(?i:\bauthorization)[\"']?\]?[ \t]*[:=][ \t]*[\"']?(?:(?:Basic|Token|Digest|Bearer)[ \t]+))[^\s\"',]+",
    r"(?P<before>(?i:\bwandb_api_key\W{1,6}|\bwandb login(?:[ \t]+--\S+)*[ \t]+))[0-9a-f]{40}\b",
    r"(?P<before>(?i:\b(?:set-)?cookie)[\"']?[ \t]*:[ \t]*[\"']?)[^\s\"'][^\"'\n]*",  # HTTP headers
    r"(?P<before>(?i:\bx-(?:api|auth)-(?:key|token))[\"']?[ \t]*:[ \t]*[\"']?)[^\s\"',]+",
    r"(?P<before>\b(?:curl|wget|http)\b[^\n]*?[ \t](?:-u|--user)[ \t=]*[\"']?[^\s:\"']+:)[^\s\"']+",  # curl -u me:word
    r"(?P<before>\bmachine[ \t]+\S+(?:\s+(?:login|account)[ \t]+\S+)*\s+password[ \t]+)\S+",  # .netrc
    r"(?P<before>(?i:\b(?:AccountKey|SharedAccessKey|SharedAccessSignature)=))[^\s;\"']+",  # Azure
    r"(?P<before>[?&;](?i:sig|X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|X-Goog-Signature|Signature)=)"
    r"[^\s&;'\"#]+",  # presigned addresses of Azure, AWS and Google
    r"(?P<before>\"(?:auth|identitytoken|registrytoken)\"\s*:\s*\")[A-Za-z0-9+/=._-]{8,}",  # .docker/config.json
    r"(?P<before>\b_authToken=)[^\s\"']+",  # .npmrc
)
PRIVATE_KEY: Final = (
    r"(?P<before>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:(?:(?!-----).){1,20000}?(?=-----END )|(?:\s*[+\- ]?[A-Za-z0-9+/=]{16,})+)"
)
_PLAIN_USER = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#'\"<>]+)@"
_USER_WITH_SLASHES = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#:@'\"<>]*:(?!\d{1,5}[/?#])[^\s@'\"<>]+)@"
_REFERENCES = re.compile(r"(?:[^:@]*:)?\$\{oc\.env:\w+\}|\[redacted\]")
_QUERY = r"(?P<before>[?&;](?P<key>[\w.\-]+)=)(?P<value>[^\s&;'\"#]+)"

# --- By name. In language modelling a token is usually not a secret: tokens, tokenizer, bos_token.
_CERTAIN = re.compile(
    r"secret|passw|passphrase|credential|bearer"
    r"|(?:^|_)(?:api|access|private|auth|hf|hub|github|gh|gitlab|wandb|openai|anthropic|slack|aws|bot|refresh|session"
    r"|signing|encryption|deploy|account)_?(?:key|token)"
)
_LIKELY = re.compile(r"(?:^|_)(?:key|token)$")
_NOT_SECRET = re.compile(
    r"(?:^|_)(?:per|bos|eos|pad|padding|unk|unknown|mask|sep|cls|special|stop|begin|end|start|text)_token$"
    r"|(?:^|_)(?:text|sort|metric|monitor|column|public|primary|foreign)_key$"
    r"|_file$"  # a path, as that of --api-key-file
)
_VARIABLE = re.compile(r"(?:^|_)(?:token|key|apikey|secrets?|pass|pwd|creds?)(?:_|$)")
_KEY = r"(?<![\w.$])(?<!\w-)(?<!\$\{)(?P<key>[A-Za-z_][\w.\-/@]*)(?P<quote>['\"]?\]?)(?P<separator>[ \t]*[:=][ \t]*)"
_VALUE = r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|(?<=[^ \t:]=)[^,}\]\s]+|[^,}\]\n]+)"
_HARMLESS = re.compile(r"\$\{[^}]*\}?|null|true|false|None|True|False|\[redacted\]?|\|.*|>.*", re.DOTALL)
_CODE = re.compile(  # a type, a look into the environment, a call: not the secret itself
    r"(?:str|bytes|bool|int|object)(?:$|[\s|)=].*)|os\.(?:environ|getenv)\W.*|[A-Za-z_][\w.]*\(.*", re.DOTALL
)
_RANDOM = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w+/=.~-]{16,}")
_FLAG = r"(?P<before>(?<![\w-])--(?P<key>[\w-]+)[ \t]+)(?P<value>[^\s'\"-][^\s]*)"

# --- By value. The environment also keeps them for a run's child processes: a file would outlive the run, and other
# people can read a command line.
REMEMBERED: Final = "LMTRAIN_SECRETS"  # JSON: {value: the variable that it comes from, or ""}
REFERENCE: Final = re.compile(r"\$\{oc\.env:\s*['\"]?(?P<name>\w+)['\"]?\s*(?:,[^{}]*)?\}")
MINIMUM_CHARACTERS: Final = 8
MINIMUM_LOWER_CASE: Final = 12  # a shorter word, such as postgres, stands elsewhere too
MINIMUM_DIGITS: Final = 16


def redact(value: Any, key: str = "") -> Any:
    """Return a copy of plain nested data without its secrets; numbers, flags and None are never secret."""
    return _changed(value, partial(_redact, secret_values()), key)


def redact_override(word: str) -> str:
    """Redact one argument of a command line, KEY=VALUE."""
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
    return re.sub(_FLAG, _without_flags_value, text)


class RedactedStream:
    """A text stream whose writes lose their secrets; everything else is the stream below."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text without its secrets; return how many characters were taken."""
        self._stream.write(redact_text(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Take everything but `write` from the stream below."""
        return getattr(self._stream, name)


def redact_patterns(text: str) -> str:
    """Replace everything in the form of a secret."""
    text = re.sub(PRIVATE_KEY, rf"\g<before>{REDACTED}", text, flags=re.DOTALL)
    for pattern in AFTER_A_WORD:
        text = re.sub(pattern, rf"\g<before>{REDACTED}", text)
    for pattern in TOKENS:
        text = re.sub(pattern, REDACTED, text)
    return redact_addresses(text)


def redact_addresses(text: str) -> str:
    """Cut user, password and secret arguments out of addresses: postgresql://me:pw@host is ...//[redacted]@host."""
    if "://" not in text:
        return text
    for pattern in (_PLAIN_USER, _USER_WITH_SLASHES):
        text = re.sub(pattern, _without_user, text)
    return re.sub(_QUERY, _without_argument, text)


def passwords_in(text: str) -> list[str]:
    """Return the passwords of the addresses in a text."""
    if "://" not in text or "@" not in text:
        return []
    users = [match["user"] for pattern in (_PLAIN_USER, _USER_WITH_SLASHES) for match in re.finditer(pattern, text)]
    return [user.partition(":")[2] for user in users if ":" in user]


def is_secret_key(key: str) -> bool:
    """Return whether the value under this key may be a secret; key is one name or a dotted path."""
    name = _plain(key)
    return bool(_CERTAIN.search(name) or _LIKELY.search(name)) and not _NOT_SECRET.search(name)


def is_certain_key(key: str) -> bool:
    """Return whether code, too, keeps a secret under this name: `api_key`, but not `key` or `token`."""
    name = _plain(key)
    return bool(_CERTAIN.search(name)) and not _NOT_SECRET.search(name)


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable of this name may hold a secret."""
    return is_secret_key(name) or (bool(_VARIABLE.search(name.lower())) and not _NOT_SECRET.search(name.lower()))


def remember_secrets(unresolved: object, config: object) -> None:
    """Keep a composed config's values from the environment, and its typed passwords and keys."""
    names = {match["name"] for _, text in _texts(unresolved) for match in REFERENCE.finditer(text)}
    typed = ([text] if is_secret_key(key) else passwords_in(text) for key, text in _texts(config))
    found = dict.fromkeys(chain.from_iterable(typed), "")
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
    """Return a copy of plain nested data with ${oc.env:NAME} replaced by its value, if the environment has it."""
    return _changed(value, lambda text, _: REFERENCE.sub(lambda it: os.environ.get(it["name"], it[0]), text))


def is_telling(value: str) -> bool:
    """Return whether a value is long and odd enough to be looked for everywhere: not a number, word or path."""
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


def _changed(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """Return a copy of plain nested data with each text changed, given its nearest key."""
    if isinstance(value, Mapping):
        return {name: _changed(item, change, str(name)) for name, item in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, str):
        return change(value, key)
    return [_changed(item, change, key) for item in cast("Any", value)] if isinstance(value, Sequence) else value


def _redact(secrets: list[tuple[str, str]], text: str, key: str) -> str:
    for secret, variable in secrets:
        text = text.replace(secret, f"${{oc.env:{variable}}}" if variable else REDACTED)
    return REDACTED if is_secret_key(key) and not _is_harmless(text) else redact_patterns(text)


def _without_value(match: re.Match[str]) -> str:
    value = match["value"].strip()
    if _is_harmless(value) or _is_code(match["key"], value, is_tight=match["separator"] == "="):
        return match[0]
    return f"{match['key']}{match['quote']}{match['separator']}{REDACTED}"


def _without_flags_value(match: re.Match[str]) -> str:
    is_kept = not is_certain_key(match["key"]) or _is_harmless(match["value"])
    return match[0] if is_kept else f"{match['before']}{REDACTED}"


def _without_user(match: re.Match[str]) -> str:
    return match[0] if _REFERENCES.fullmatch(match["user"]) else f"{match['scheme']}{REDACTED}@"


def _without_argument(match: re.Match[str]) -> str:
    is_kept = not is_secret_key(match["key"]) or match["value"].startswith("${")
    return match[0] if is_kept else f"{match['before']}{REDACTED}"


def _is_code(key: str, value: str, *, is_tight: bool) -> bool:
    if is_certain_key(key):
        return not is_tight and bool(_CODE.fullmatch(value))
    return not _RANDOM.fullmatch(value.strip("'\""))  # `key` and `token` are names of anything


def _is_harmless(value: str) -> bool:
    bare = value.strip("'\"")
    if not bare or _HARMLESS.fullmatch(bare):
        return True
    try:
        float(bare)
    except ValueError:
        return False
    return True


def _plain(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.rsplit(".", 1)[-1]).replace("-", "_").lower()


def _as_written(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for value, name in values.items():
        text = value.strip()
        yield text, name
        others = {quote(text, safe=""), unquote(text), json.dumps(text)[1:-1]} - {text}
        yield from ((other, "") for other in others)


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the nearest key and the value of each text."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield from _texts(item, str(name))
    elif isinstance(value, Iterable):
        for item in cast("Iterable[object]", value):
            yield from _texts(item, key)


def _remembered() -> dict[str, str]:
    return json.loads(os.environ.get(REMEMBERED, "{}"))
