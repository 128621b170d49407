"""A folder of options, or a pipeline's file, may be anybody's: some settings count there only where they are typed too.

An option names them itself, by `TypedAlone` in its signature: lines of shell, a program's words, a folder of compiled
code, a place where this person's things are sent. A secret of this environment comes into no setting of a file.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.schema.source_signatures import default_settings, typed_alone
from lmtrain.tracking.redaction import REMEMBERED, is_secret_variable, is_telling, passwords_in, redact_override

# In the words of a pipeline's file, in any spelling: a flag's letters as argparse takes them, a setting's own name.
IN_A_WORD: Final = re.compile(
    r"(?<![\w-])--(?:r|al)|oc\.env|\b(?:setup|sbatch|slurm\w*|tracking_uri|repository|address|words)\b\W*[.:=]"
    r"|\brun\.cache\b|\brun\b\W*=.*\bcache\b\W*:"
)


def refuse_untyped(config: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Refuse a setting of a file that only a person decides.

    Raises:
        ConfigurationError: Its key is not typed.
    """
    words = [word.lstrip("+").partition("=") for word in typed]
    keys = {key for key, _, _ in words} | {f"{key}." for key, _, value in words if value.startswith("{")}
    secrets = _secrets()
    for key, value, is_alone in _settings(config, "", is_alone=False):
        if _is_typed(key, keys) or (is_alone and _goes_to_a_typed_server(value)):
            continue
        if is_alone:
            raise ConfigurationError(
                f"{redact_override(f'{key}={value}')} is not decided by --config-dir: it runs code, or says where "
                f"things are sent; where you wrote it yourself, type it: '+{key}=...'."
            )
        if name := next((name for secret, name in secrets.items() if secret in str(value)), None):
            raise ConfigurationError(
                f"{key} holds {name} of this environment, which --config-dir does not use; type it."
            )


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
    """Tell whether a key, or a node around it, is typed; a group's own key stands for all that use the group."""
    inner = (one for one in typed if "." in one)
    return key in typed or any(key.endswith(f".{one}") or (one[-1] == "." and key.startswith(one)) for one in inner)


def _goes_to_a_typed_server(value: Any) -> bool:
    from lmtrain.tracking.mlflow.client import (
        SQLITE,  # of folders of options alone
        is_typed_server,
    )

    return isinstance(value, str) and (value.startswith(SQLITE) or is_typed_server(value))


def _secrets() -> dict[str, str]:
    """Return the secrets of the environment, with their variables."""
    return {
        value: name
        for name, value in os.environ.items()
        if name != REMEMBERED and is_telling(value) and (is_secret_variable(name) or passwords_in(value))
    }
