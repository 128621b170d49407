"""The option files of `conf/`, read as text: keys with their value and comment, defaults, and what extends what.

Reading them imports neither Hydra nor YAML: help, completion and refusals answer at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lmtrain.run.schema.targets import OPTION

LINE: Final = re.compile(r"^(?P<indent> *)(?P<key>\w+): *(?P<value>(?:[^# ].*?)?)(?: +# *(?P<comment>.*))?$")
MEANING: Final = re.compile(r"^# (\w+): (.+)$", flags=re.MULTILINE)
NOT_SETTINGS: Final = ("_target_", "_partial_", "_recursive_", "defaults", OPTION)


def default_options(main: Path) -> dict[str, str]:
    """Return the option of each group in the defaults of an entry config."""
    entries = (line.strip().removeprefix("- ") for line in main.read_text().splitlines() if line.startswith("  - "))
    pairs = (entry.split("#")[0].removeprefix("override ").partition(":") for entry in entries)
    named = {group.strip().lstrip("/"): option.strip() for group, _, option in pairs}
    return {group: option for group, option in named.items() if option}


def shared_keys(main: Path) -> dict[str, str]:
    """Return the commented scalars of the entry config with their defaults."""
    return {name: value for name, value, _ in shared_rows(main)}


def shared_rows(main: Path) -> list[tuple[str, str, str]]:
    """Return (key, value, meaning) of the commented scalars of an entry config."""
    rows = ((key, value, meaning) for key, (value, meaning) in _rows(main, []) if meaning)
    return [row for row in rows if not row[0].startswith("hydra.")]


def describe(file: Path) -> str:
    """Return the first comment line of a YAML file, Hydra directives left out."""
    comments = (line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#"))
    return next((comment for comment in comments if comment and not comment.startswith("@package")), "")


def option_rows(file: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys of a file with their value and comment; those of the files it extends come first."""
    for extended in _extended(file):
        yield from option_rows(extended)
    yield from _rows(file, [] if "@package _global_" in file.read_text() else [file.parent.name])


def _rows(file: Path, parents: list[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys with a value of one file below `parents`, with value and comment."""
    above: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        found = LINE.match(line)
        if found is None or found["key"] in NOT_SETTINGS:
            continue
        indent = len(found["indent"])
        above = [each for each in above if each[0] < indent]
        if found["value"]:
            path = [*parents, *(name for _, name in above), found["key"]]
            yield ".".join(path), (found["value"], found["comment"] or "")
        else:
            above.append((indent, found["key"]))


def chosen_rows(file: Path) -> dict[str, tuple[str, str]]:
    """Return the keys of an option with value and comment, its own values in the place of those that it extends."""
    rows: dict[str, tuple[str, str]] = {}
    for key, (value, comment) in option_rows(file):
        rows[key] = (value, comment or rows.get(key, ("", ""))[1])
    return rows


def meanings_in(folder: Path) -> dict[str, str]:
    """Return the meanings of a group's keys, each stated in one file, as `# KEY: MEANING` or behind a value."""
    behind: dict[str, str] = {}
    stated: dict[str, str] = {}
    for file in sorted(folder.glob("*.yaml")):
        stated |= {f"{folder.name}.{key}": meaning for key, meaning in MEANING.findall(file.read_text())}
        for key, (_, comment) in option_rows(file):
            if comment:
                behind.setdefault(key, comment)
    return behind | stated


def _extended(file: Path) -> list[Path]:
    listed = re.search(r"^defaults:(?P<inline>.*)\n(?P<items>(?:  - .*\n)*)", file.read_text(), flags=re.MULTILINE)
    if listed is None:
        return []
    items = re.findall(r"^  - (\w+)$", listed["items"], flags=re.MULTILINE)
    words = [*re.findall(r"\w+", listed["inline"]), *items]
    return [path for word in words if (path := file.parent / f"{word}.yaml").is_file()]


def is_shorthand(file: Path) -> bool:
    """Return whether an option has the settings of its file alone: another one of the same code has them all."""
    return re.search(rf"^{OPTION}:", file.read_text(), flags=re.MULTILINE) is not None


def target_of(file: Path) -> str:
    """Return the target of an option, or of the option it extends; "" for several or none."""
    found = re.findall(r"^_target_: *(\S+)", file.read_text(), flags=re.MULTILINE)
    return found[0] if found else next((target_of(each) for each in _extended(file)), "")
