"""The groups for which typed options choose, as an adapter does for its optimizer: there a base's own give way."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lmtrain.composition.command_line.file_values import NAME
from lmtrain.composition.command_line.paths import conf_folder

CHOICE: Final = re.compile(r"^[^#\n]*\boverride /(\w+)\s*:", re.MULTILINE)
EXTENDED: Final = re.compile(r"^(?:defaults: *\[(\w+)\]|\s*- (\w+))\s*(?:#.*)?$", re.MULTILINE)


def chosen_groups(given: Mapping[str, str], *, own: str | None = None) -> set[str]:
    """Return those groups; `own` is a person's folder of options."""
    folders = [conf_folder(), *([Path(own)] if own else [])]
    return {
        chosen
        for group, options in given.items()
        if NAME.fullmatch(group)
        for option in (options[1:-1].split(",") if options.startswith("[") else [options])
        for chosen in _chosen_by(group, option.strip(" '\""), folders, ())
    }


def _chosen_by(group: str, option: str, folders: list[Path], below: tuple[str, ...]) -> Iterator[str]:
    """Give the groups of one option's own list of defaults, and of the options that it extends."""
    files = [
        file for folder in folders if NAME.fullmatch(option) and (file := folder / group / f"{option}.yaml").is_file()
    ]
    if not files or option in below:
        return
    text = files[0].read_text(encoding="utf-8", errors="replace")
    yield from CHOICE.findall(text)
    for found in EXTENDED.findall(text):
        yield from _chosen_by(group, next(filter(None, found)), folders, (*below, option))
