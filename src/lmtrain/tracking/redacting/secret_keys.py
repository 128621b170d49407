"""Names of secrets: of settings, and of the environment's variables.

In language modelling a token is usually not a secret: tokens, tokenizer, flops_per_token and bos_token are none.
"""

import re

_CERTAIN = re.compile(
    r"secret|passw|passphrase|credential|bearer"
    r"|(?:^|_)(?:api|access|private|auth|hf|hub|github|gh|gitlab|wandb|openai|anthropic|slack|aws|bot|refresh|session"
    r"|signing|encryption|deploy)_?(?:key|token)"
)
_LIKELY = re.compile(r"(?:^|_)(?:key|token)$")
_NOT_SECRET = re.compile(
    r"(?:^|_)(?:per|bos|eos|pad|padding|unk|unknown|mask|sep|cls|special|stop|begin|end|start|text)_token$"
    r"|(?:^|_)(?:text|sort|metric|monitor|column|public|primary|foreign)_key$"
)
_VARIABLE = re.compile(r"(?:^|_)(?:token|key|apikey|secrets?|pass|pwd|creds?)(?:_|$)")


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


def _plain(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.rsplit(".", 1)[-1]).replace("-", "_").lower()
