"""The pages of `--help GROUP` and `--help GROUP=OPTION`: read from YAML files and sources, importing neither."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.compose.paths import option_names
from lmtrain.run.schema.source_signatures import default_settings

COLUMNS: Final = 80
KEY_COLUMNS: Final = 34
LINE: Final = re.compile(r"^(?P<indent> *)(?P<key>\w+): *(?P<value>.*?)(?: +# *(?P<comment>.*))?$")
MEANING: Final = re.compile(r"^# (\w+): (.+)$", flags=re.MULTILINE)
HYDRA_KEYS: Final = ("_target_", "_partial_", "_recursive_", "defaults")


def topic_page(conf: Path, topic: str, *, groups: Sequence[Path], default: str | None) -> str:
    """Render the options of a group, or the keys of GROUP=OPTION with their meaning, unit and default.

    Raises:
        ConfigurationError: There is no such group or option.
    """
    group, equals, option = topic.partition("=")
    names = [folder.name for folder in groups]
    if group not in names:
        raise ConfigurationError(
            f"--help {topic}: there is no group {group}; groups are {', '.join(names)}.{suggest(group, names)}"
        )
    if not equals:
        return group_page(conf / group, default)
    file = conf / group / f"{option}.yaml"
    if not file.is_file():
        from lmtrain.run.compose.unknown_words import unknown_option  # OmegaConf: only to refuse

        raise ConfigurationError(unknown_option(group, option, option_names(group, conf)))
    return option_page(file)


def group_page(folder: Path, default: str | None) -> str:
    """List a group's options, each with the first line of its file."""
    lines = [f"{folder.name}=OPTION (* default)", ""]
    for file in sorted(folder.glob("*.yaml")):
        mark = "*" if file.stem == default else " "
        lines += hanging(f" {mark} {file.stem}", describe(file), columns=26)
    return "\n".join([*lines, "", f"--help {folder.name}=OPTION shows an option's keys."])


def option_page(file: Path) -> str:
    """List an option's keys: those of its file and of the files it extends, then its code's other settings."""
    lines = [f"{file.parent.name}={file.stem}", *textwrap.wrap(describe(file), COLUMNS), ""]
    rows: dict[str, tuple[str, str]] = {}
    for key, (value, comment) in option_rows(file):
        rows[key] = (value, comment or rows.get(key, ("", ""))[1])
    meanings = meanings_in(file.parent)
    for key, (value, comment) in rows.items():
        lines += hanging(f"  {key}={value}", comment or meanings.get(key, ""), columns=KEY_COLUMNS)
    named = {key.rpartition(".")[2] for key in rows}
    more = {name: value for name, value in default_settings(_target(file)).items() if name not in named}
    if more:
        lines += ["", "More settings, with the default of the code:"]
        for name, value in more.items():
            key = f"{file.parent.name}.{name}"
            lines += hanging(f"  +{key}={_word(value)}", meanings.get(key, ""), columns=KEY_COLUMNS)
    return "\n".join(lines if rows or more else [*lines, "It has no keys."])


def meanings_in(folder: Path) -> dict[str, str]:
    """Return the meanings of a group's keys, each told in one file: as `# KEY: MEANING`, or beside a value."""
    beside: dict[str, str] = {}
    told: dict[str, str] = {}
    for file in sorted(folder.glob("*.yaml")):
        told |= {f"{folder.name}.{key}": meaning for key, meaning in MEANING.findall(file.read_text())}
        for key, (_, comment) in option_rows(file):
            if comment:
                beside.setdefault(key, comment)
    return beside | told


def describe(file: Path) -> str:
    """Return the first comment line of a YAML file, Hydra directives left out."""
    comments = (line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#"))
    return next((comment for comment in comments if comment and not comment.startswith("@package")), "")


def option_rows(file: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the keys of a file with their value and comment; those of the files it extends come first."""
    for extended in _extended(file):
        yield from option_rows(extended)
    is_global = "@package _global_" in file.read_text()
    parents = [] if is_global else [file.parent.name]
    above: list[tuple[int, str]] = []
    for line in file.read_text().splitlines():
        found = LINE.match(line)
        if found is None or found["key"] in HYDRA_KEYS:
            continue
        indent = len(found["indent"])
        above = [each for each in above if each[0] < indent]
        if found["value"]:
            path = [*parents, *(name for _, name in above), found["key"]]
            yield ".".join(path), (found["value"], found["comment"] or "")
        else:
            above.append((indent, found["key"]))


def _extended(file: Path) -> list[Path]:
    listed = re.search(r"^defaults:(?P<inline>.*)\n(?P<items>(?:  - .*\n)*)", file.read_text(), flags=re.MULTILINE)
    if listed is None:
        return []
    items = re.findall(r"^  - (\w+)$", listed["items"], flags=re.MULTILINE)
    words = [*re.findall(r"\w+", listed["inline"]), *items]
    return [path for word in words if (path := file.parent / f"{word}.yaml").is_file()]


def _target(file: Path) -> str:
    """Return the target of an option, or of the option it extends; "" for several or none."""
    found = re.findall(r"^_target_: *(\S+)", file.read_text(), flags=re.MULTILINE)
    return found[0] if found else next((_target(each) for each in _extended(file)), "")


def _word(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def hanging(head: str, text: str, *, columns: int) -> list[str]:
    """Lay a meaning beside its word, and below it where either is long."""
    wrapped = textwrap.wrap(text, COLUMNS - columns, break_on_hyphens=False) or [""]
    if len(head) >= columns:
        key, _, value = head.partition("=")
        heads = [head] if len(head) <= COLUMNS else [f"{key}=", f"      {value}"]
        return [*heads, *(" " * columns + line for line in wrapped if line)]
    return [f"{head:<{columns}}{wrapped[0]}".rstrip(), *(" " * columns + line for line in wrapped[1:])]
