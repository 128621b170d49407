"""`lmtrain tune lr` and `lmtrain tune batch`: a setting found by short trainings of the config itself."""

from typing import Final

from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, ConfigurationError, suggest

KINDS: Final = ("lr", "batch")


def tune(words: list[str], *, program: str = "lmtrain tune") -> int:
    """Find a learning rate or a micro batch.

    Raises:
        ConfigurationError: Neither is asked for, or the config is wrong.
    """
    if HELP_FLAGS & set(words) or not words:
        print(verb_page("tune", program=program))
        return EXIT_DONE
    kind, *others = words
    if kind == "lr":
        from lmtrain.cli.commands.tune_lr import tune_lr

        return tune_lr(others, program=program)
    if kind == "batch":
        from lmtrain.cli.commands.tune_batch import tune_batch

        return tune_batch(others, program=program)
    raise ConfigurationError(f"{program} {kind}: it finds lr or batch.{suggest(kind, KINDS)}")
