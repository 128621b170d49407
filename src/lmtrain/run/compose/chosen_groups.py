"""The groups for which typed options choose, as an adapter does for its optimizer: there a base's own give way.

Of two that choose for one group, a task and the optimizer, the optimizer wins: no task decays a schedule-free rate.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lmtrain.run.compose.file_values import NAME
from lmtrain.run.compose.paths import conf_folder

OPTIMIZER: Final = "optimizer"
CHOICE: Final = re.compile(r"^[^#\n]*\boverride /(\w+)\s*:[ \t]*([^\s#]*)", re.MULTILINE)
EXTENDED: Final = re.compile(r"^(?:defaults: *\[(\w+)\]|\s*- (\w+))\s*(?:#.*)?$", re.MULTILINE)


def chosen_groups(given: Mapping[str, str], *, own: str | None = None) -> set[str]:
    """Return those groups; `own` is a person's folder of options."""
    return {group for group, _ in _choices(given, own)}


def optimizer_words(given: Mapping[str, str], *, own: str | None = None) -> list[str]:
    """Return the typed optimizer's choices for groups of a task's or an experiment's choice too: its own come first."""
    others = chosen_groups({group: options for group, options in given.items() if group != OPTIMIZER}, own=own)
    choices = _choices({OPTIMIZER: given.get(OPTIMIZER, "")}, own)
    return [f"{group}={option}" for group, option in choices if group in others and group not in given]


def _choices(given: Mapping[str, str], own: str | None) -> Iterator[tuple[str, str]]:
    """Give the groups and options from the defaults of all options given."""
    folders = [conf_folder(), *([Path(own)] if own else [])]
    for group, options in given.items():
        if NAME.fullmatch(group):
            for option in options[1:-1].split(",") if options.startswith("[") else [options]:
                yield from _chosen_by(group, option.strip(" '\""), folders, ())


def _chosen_by(group: str, option: str, folders: list[Path], below: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Give the choices of one option's own list of defaults, and of the options that it extends."""
    files = [
        file for folder in folders if NAME.fullmatch(option) and (file := folder / group / f"{option}.yaml").is_file()
    ]
    if not files or option in below:
        return
    text = files[0].read_text(encoding="utf-8", errors="replace")
    yield from CHOICE.findall(text)
    for found in EXTENDED.findall(text):
        yield from _chosen_by(group, next(filter(None, found)), folders, (*below, option))
