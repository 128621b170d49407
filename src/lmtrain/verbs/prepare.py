"""`lmtrain prepare`: turn text into tokenized shards."""

from lmtrain.composition.command_line.help import HELP_FLAGS, help_page
from lmtrain.composition.command_line.paths import conf_folder


def prepare(words: list[str], *, program: str = "lmtrain prepare") -> int:
    """Prepare a data set into shards and print its folder."""
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config="prepare", words=words))
        return 0
    from lmtrain.composition.execution.preparation import prepare_data

    return prepare_data(words)
