"""Words without a key that are places: texts to train on, and other programs' files of settings."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final

from lmtrain.run.compose.foreign.table import Equivalent
from lmtrain.run.compose.paths import conf_folder, is_key_of_training, is_text_file, key_of

SETTINGS: Final = (".yaml", ".yml", ".py", ".toml", ".json")
IN_A_FILE: Final = (
    "settings in a file are FOLDER/experiment/NAME.yaml, by --config-dir FOLDER experiment=NAME; no other file is read"
)
# Keys whose values are places or names, perhaps with a space.
WITH_SPACES: Final = ("run.", "source.", "data.", "init_from", "resume")


def place_alone(words: Sequence[str], last: str) -> tuple[int, Equivalent] | None:
    """Return the answer to the places that these words begin with, and their number; None for other words.

    `last` is the setting right before them, whose value may have been cut at a space.
    """
    _, equals, value = last.partition("=")
    if equals and (key_of(last).startswith(WITH_SPACES) or Path(f"{value} {words[0]}").exists()):
        return None
    source = last if takes_paths(last) else ""
    if words[0].endswith(SETTINGS) and not source:
        return 1, Equivalent((), IN_A_FILE)
    texts = [*takewhile(_is_place_of_texts if source else _is_text, words)]
    return (len(texts), Equivalent((source or "source=files", f"source.paths=[{','.join(texts)}]"))) if texts else None


def takes_paths(word: str) -> bool:
    """Tell whether a word chooses a source of texts by their paths."""
    group, _, option = word.partition("=")
    file = conf_folder() / group / f"{option}.yaml"
    return group == "source" and file.is_file() and "\npaths:" in file.read_text()


def is_place(word: str) -> bool:
    """Tell whether a word is a path by its letters, or one of something here."""
    if "=" in word or word.startswith("-"):
        return False
    return "/" in word or word.startswith((".", "~")) or Path(word).exists()


def _is_place_of_texts(word: str) -> bool:
    return is_place(word) or _is_text(word)


def _is_text(word: str) -> bool:
    if "=" in word or word.startswith(("-", "[", "~")) or is_key_of_training(word):
        return False
    if is_text_file(word):
        return True
    try:
        return Path(word).is_file() or any(is_text_file(file.name) for file in Path(word).iterdir())
    except OSError:
        return False
