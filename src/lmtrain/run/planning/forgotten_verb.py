"""The intended command of settings typed without a verb: `lmtrain lr=1e-3`."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.meant import MeantWord
from lmtrain.run.compose.paths import is_key_of_training
from lmtrain.run.planning.tried_answers import tried_meant

TRAIN: Final = "lmtrain train"
A_VERB: Final = f"A setting has a verb before it, as in {TRAIN} KEY=VALUE."
SWEEPS: Final = ("-m", "--multirun")


def is_setting(word: str, following: Sequence[str]) -> bool:
    """Tell whether a word in a verb's place is a setting, a flag or a list."""
    is_key = bool(following) and (following[0].startswith("=") or is_key_of_training(word.partition(".")[0]))
    return "=" in word or word.startswith(("-", "~", "[")) or is_key


def forgotten_verb(words: Sequence[str]) -> ConfigurationError:
    """Return the refusal of settings without a verb: the command to type, or the first setting's own mistake."""
    try:
        arguments = parse_arguments(words)
        from lmtrain.run.compose.compose import for_each_config

        flags = [flag for flag in arguments.flags if flag in SWEEPS]  # nothing is printed here
        for_each_config(lambda *_: None, replace(arguments, flags=flags), config_name="train")
    except MeantWord as found:
        wrong = tried_meant(found)
        if not isinstance(wrong, MeantWord):
            return ConfigurationError(f"{wrong} {A_VERB}")
        return MeantWord(wrong.typed, wrong.reason, f"{TRAIN} {wrong.meant}", wrong.lines)
    except ConfigurationError as wrong:
        return ConfigurationError(f"{wrong} {A_VERB}")
    return MeantWord(" ".join(words), "a verb comes first", f"{TRAIN} {shlex.join(words)}")
