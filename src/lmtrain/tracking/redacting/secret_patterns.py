"""Secrets known by their own form, in any text: tokens of known services, private keys, passwords in addresses.

The forms are the services' documented ones, with a little less length asked for. Hashes in hexadecimal stay.
"""

import re

from lmtrain.tracking.redacting.secret_keys import is_secret_key

REDACTED = "[redacted]"

# Strings, compiled by `re` at their first use: a short command needs none of them.
TOKENS = (
    r"\bhf_(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{16,}",  # Hugging Face
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b(?:[\s:,;|\"']{1,5}[A-Za-z0-9/+=]{40}(?![\w/+=]))?",  # AWS, with its secret
    r"\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}",  # GitHub, GitLab
    r"\bsk-(?=[\w-]*\d)[\w-]{16,}",  # OpenAI, Anthropic
    r"\bxox[a-z]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bAIza[\w-]{30,}",  # Google
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token, RFC 7519
)
AFTER_A_WORD = (
    r"(?P<before>\b[Bb]earer[ \t]+)[\w.~+/=-]{8,}",
    r"(?P<before>(?i:\bauthorization)[\"']?\]?[ \t]*[:=][ \t]*[\"']?(?:(?:Basic|Token|Digest|Bearer)[ \t]+))[^\s\"',]+",
    r"(?P<before>(?i:\bwandb_api_key\W{1,6}|\bwandb login(?:[ \t]+--\S+)*[ \t]+))[0-9a-f]{40}\b",
)
PRIVATE_KEY = (
    r"(?P<before>-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----)"
    r"(?:(?:(?!-----).){1,20000}?(?=-----END )|(?:\s*[+\- ]?[A-Za-z0-9+/=]{16,})+)"
)
_PLAIN_USER = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#'\"<>]+)@"
_USER_WITH_SLASHES = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#:@'\"<>]*:(?!\d{1,5}[/?#])[^\s@'\"<>]+)@"
_REFERENCES = re.compile(r"(?:[^:@]*:)?\$\{oc\.env:\w+\}|\[redacted\]")
_QUERY = r"(?P<before>[?&;](?P<key>[\w.\-]+)=)(?P<value>[^\s&;'\"#]+)"


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


def _without_user(match: re.Match[str]) -> str:
    return match[0] if _REFERENCES.fullmatch(match["user"]) else f"{match['scheme']}{REDACTED}@"


def _without_argument(match: re.Match[str]) -> str:
    is_kept = not is_secret_key(match["key"]) or match["value"].startswith("${")
    return match[0] if is_kept else f"{match['before']}{REDACTED}"
