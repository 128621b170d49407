"""The options of a group with their facts, for advice, and for refusals with an alternative.

An option is advised for its own statement of facts, and a new one at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import yaml

from lmtrain.run.compose.option_files import option_rows, target_of
from lmtrain.run.compose.paths import conf_folder
from lmtrain.run.schema.facts import Facts, facts_of
from lmtrain.run.schema.signatures import setting_names
from lmtrain.run.schema.targets import word_of

F = TypeVar("F", bound=Facts)

DEVICES: Final = "${trainer.devices}"
NODE: Final = 8  # devices of a usual node


def words_of(kind: type[F], holds: Callable[[F], bool], **place: Any) -> list[str]:
    """Return the options of a group, as GROUP=OPTION, whose facts at their usual settings are as asked.

    `place` is added to the settings. Groups of ranks are those of a usual node; other values of other groups are unset.
    """
    words: list[str] = []
    for file in sorted((conf_folder() / kind.group).glob("*.yaml")):
        word = f"{kind.group}={file.stem}"
        values = {key: NODE if value == DEVICES else value for key, value in file_values(word).items()}
        own = {key: value for key, value in values.items() if "${" not in str(value)}
        facts = facts_of(own, kind, **place)
        if facts is not None and holds(facts):
            words.append(word)
    return words


def option_of(group: str, values: Mapping[str, Any]) -> str:
    """Return the option of a node: its own or its function's name, or the file of its class."""
    name, target = word_of(values), values["_target_"]
    files = (conf_folder() / group).glob("*.yaml")
    return name if name.islower() else next((file.stem for file in files if target_of(file) == target), name)


@cache
def file_values(word: str) -> Mapping[str, Any]:
    """Return the settings in the file of GROUP=OPTION."""
    group, _, option = word.partition("=")
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    return yaml.load((conf_folder() / group / f"{option}.yaml").read_text(), Loader=loader) or {}  # noqa: S506


def with_default(callbacks: Iterable[str]) -> str:
    """Return the word of the default callbacks and of those that are not among them."""
    default = file_values("callbacks=default")["defaults"]
    return f"'callbacks=[{','.join(['default', *(name for name in callbacks if name not in default)])}]'"


def options_with_key(key: str) -> list[str]:
    """Return the options of a key's group that have it in their file, or whose code takes it."""
    group, _, name = key.partition(".")
    files = sorted((conf_folder() / group).glob("*.yaml")) if name else []
    named = [file.stem for file in files if key in dict(option_rows(file))]
    return named or [file.stem for file in files if name in setting_names(target_of(file))]


def one_of(words: Sequence[str]) -> str:
    """Join words of one group: one of strategy=auto, ddp, fsdp."""
    first, *others = words
    return f"one of {', '.join([first, *(word.partition('=')[2] for word in others)])}" if others else first
