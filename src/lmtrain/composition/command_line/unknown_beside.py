"""Unknown words beside those of other programs, so that one refusal answers a whole command."""

import re
from collections.abc import Sequence
from typing import Final

from lmtrain.composition.command_line.flags import known_flags
from lmtrain.composition.command_line.paths import conf_folder, is_key_of_training

OWN_FOLDER: Final = ("--config-dir", "-cd")  # its options may know any key


def unknown_beside(words: Sequence[str], answered: Sequence[str]) -> list[str]:
    """Return a line for each word that no command here knows, but for those `answered` already."""
    if has_own_folder(words):
        return []
    found: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if any(f"{each} ".startswith(f"{word} ") for each in answered) or word.startswith("~"):
            continue
        if word.startswith("--") and name not in known_flags():
            found.append(f"{name}: there is no such flag")
        elif equals and not word.startswith("-") and not is_known_head(name.lstrip("+")):
            found.append(f"{word}: there is no key {name.lstrip('+')}")
    return found


def has_own_folder(words: Sequence[str]) -> bool:
    """Tell whether a command adds a folder of options."""
    return any(word.partition("=")[0] in OWN_FOLDER for word in words)


def is_known_head(key: str) -> bool:
    """Tell whether a key begins as one of any command here: a group, a setting, a training of a pipeline."""
    head = re.split(r"[./@]", key)[0]
    if is_key_of_training(head) or head in ("hydra", "pipeline"):
        return True
    files = (*conf_folder().glob("*.yaml"), *conf_folder().glob("pipeline/*.yaml"))
    named = re.compile(rf"^(?:\W*name: {re.escape(head)}\b|[ -]*{re.escape(head)}:)", re.MULTILINE)
    return any(named.search(file.read_text()) for file in files)
