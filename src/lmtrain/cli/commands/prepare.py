"""`lmtrain prepare`: turn text into tokenized shards."""

from lmtrain.cli.help import HELP_FLAGS, help_page
from lmtrain.run.compose.paths import conf_folder


def prepare(words: list[str], *, program: str = "lmtrain prepare") -> int:
    """Prepare a data set into shards and print its folder."""
    if HELP_FLAGS & set(words):
        print(help_page(conf_folder(), program=program, config="prepare", words=words))
        return 0
    from lmtrain.run.execution.preparation import prepare_data

    return prepare_data(words)
