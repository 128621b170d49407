"""Options and settings without their sign: `llama_3_8b` for model=llama_3_8b, `budget.tokens:500K`."""

import re
from collections.abc import Sequence
from itertools import takewhile

from lmtrain.run.compose.bare_words import WITH_SPACES
from lmtrain.run.compose.foreign.table import quoted
from lmtrain.run.compose.paths import conf_folder, is_key_of_training, key_of


def bare_options(words: Sequence[str], *, last: str) -> tuple[list[str], list[str]]:
    """Return the words of this kind that others begin with, and the words meant, one each; none in doubt.

    `last` is the setting right before them, whose value may have been cut at a space.
    """
    if last and key_of(last).startswith(WITH_SPACES):
        return [], []
    bare = list(takewhile(lambda word: len(_meant(word)) == 1, words))
    return bare, [quoted(_meant(word)[0]) for word in bare]


def _meant(word: str) -> list[str]:
    key, colon, value = word.partition(":")
    if colon and value and is_key_of_training(key.partition(".")[0]):
        return [f"{key}={value}"]
    name = re.sub(r"[-. ]", "_", word.lower())
    if not re.fullmatch(r"\w+", name):
        return []
    return [f"{file.parent.name}={name}" for file in sorted(conf_folder().glob(f"*/{name}.yaml"))]
