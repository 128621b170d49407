"""The help pages of commands, groups and options, read from the YAML files and the sources without importing Hydra."""

import textwrap
from argparse import HelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from lmtrain.cli.command_table import VERBS
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.run.compose.arguments import flags_parser
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.option_files import (
    chosen_rows,
    default_options,
    describe,
    is_shorthand,
    meanings_in,
    shared_rows,
    target_of,
)
from lmtrain.run.compose.paths import group_folders
from lmtrain.run.schema.signatures import default_settings
from lmtrain.run.schema.targets import OPTION

HELP_FLAGS: Final = frozenset({"-h", "--help"})
COLUMNS: Final = 80
KEY_COLUMNS: Final = 34
WIDE: Final = 30  # columns of a flag next to its help
USAGE: Final = "%(prog)s [GROUP=OPTION ...] [KEY=VALUE ...] [FLAG ...]"

EVERY_CHOICE: Final = """\
-m KEY=VALUE,VALUE gives one config per value. `lmtrain train --help` lists all
groups, options, shared keys and flags of a config."""
GROUPS: Final = """
Groups (* default)
{groups}
--help GROUP shows its options, --help GROUP=OPTION their keys, and --help keys
those that groups share."""
TRAINING: Final = """
Amounts: budget.tokens=20M, callbacks.checkpoint.every_seconds=10min. The same
command again goes on with its run.
"""
PREPARATION: Final = """
Settings of a preparation are data.folder.KEY=VALUE; a training run with the
same source, tokenizer and data.folder settings finds the prepared folder.
"""
NOTES: Final = {"train": TRAINING, "prepare": PREPARATION}


def help_page(conf: Path, *, program: str, config: str = "train", words: Sequence[str] = ()) -> str:
    """Render the help page of one entry config, or of the topic typed; --config-dir adds a person's own options."""
    main = conf / f"{config}.yaml"
    defaults = default_options(main)
    shown = [path for path in group_folders(conf) if any(path.glob("*.yaml"))]
    shown = [folder for folder in shown if config == "train" or folder.name in defaults]
    own, topics = _own_folder(words)
    if not topics:
        groups = "".join(_summary(folder, defaults.get(folder.name)) for folder in shown)
        parser = flags_parser(
            program,
            usage=USAGE,
            description=VERBS[config.removeprefix("make_")][1],
            formatter_class=partial(HelpFormatter, max_help_position=WIDE),
        )
        return parser.format_help() + NOTES.get(config, "") + GROUPS.format(groups=groups)
    topic = topics[0]
    if "keys" in topics:
        return f"Shared keys\n{_shared_page(main)}"
    if not (conf / topic).is_dir() and (rows := _shared_page(main, topic)):
        return rows.rstrip()
    return _topic_page(topic, groups=shown, own=own, default=defaults.get(topic.partition("=")[0]))


def _own_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder of --config-dir, None without one, and the topics."""
    asked, others = flags_parser("").parse_known_args([*words])
    folder = None if asked.config_dir is None else Path(asked.config_dir)
    return folder, [word for word in others if not word.startswith("-")]


def run_parser(verb: str, program: str, *, end: str = "") -> FlagParser:
    """Return the parser of a command that takes a training's words and --json; `end` stands below its flags."""
    parser = FlagParser(
        prog=program,
        usage=USAGE,
        description=VERBS[verb][1],
        epilog=f"{end}\n\n{EVERY_CHOICE}".lstrip("\n"),
        formatter_class=partial(RawDescriptionHelpFormatter, max_help_position=WIDE),
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one object per config")
    return parser


def _topic_page(topic: str, *, groups: Sequence[Path], own: Path | None, default: str | None) -> str:
    """Render the options of a group, or the keys of GROUP=OPTION with their meaning, unit and default."""
    group, equals, option = topic.partition("=")
    folders = {folder.name: folder for folder in groups}
    if group not in folders:
        raise ConfigurationError(
            f"--help {topic}: there is no group {group}; groups are {', '.join(folders)}.{suggest(group, folders)}"
        )
    places = (folders[group], *([own / group] if own else []))
    files = {file.stem: file for folder in places for file in folder.glob("*.yaml")}
    if not equals:
        return _group_page(group, files, default)
    if option not in files:
        from lmtrain.run.compose.suggestions import unknown_option  # only to refuse

        raise ConfigurationError(unknown_option(group, option, files))
    return _option_page(files[option])


def _group_page(group: str, files: dict[str, Path], default: str | None) -> str:
    """List a group's options, each with the first line of its file."""
    lines = [f"{group}=OPTION (* default)", ""]
    for name, file in sorted(files.items()):
        lines += _hanging(f" {'*' if name == default else ' '} {name}", describe(file), columns=26)
    return "\n".join([*lines, "", f"--help {group}=OPTION shows an option's keys."])


def _option_page(file: Path) -> str:
    """List an option's keys: those of its file and of the files it extends, then its code's other settings."""
    lines = [f"{file.parent.name}={file.stem}", *textwrap.wrap(describe(file), COLUMNS), ""]
    rows, meanings = chosen_rows(file), meanings_in(file.parent)
    for key, (value, comment) in rows.items():
        lines += _hanging(f"  {key}={value}", comment or meanings.get(key, ""), columns=KEY_COLUMNS)
    named = {key.rpartition(".")[2] for key in rows}
    settings = {} if is_shorthand(file) else default_settings(target_of(file))
    more = {name: value for name, value in settings.items() if name not in (OPTION, *named)}
    if more:
        lines += ["", "More settings, with the default of the code:"]
        for name, value in more.items():
            key = f"{file.parent.name}.{name}"
            lines += _hanging(f"  +{key}={_word(value)}", meanings.get(key, ""), columns=KEY_COLUMNS)
    return "\n".join(lines if rows or more else [*lines, "It has no keys."])


def _summary(folder: Path, default: str | None) -> str:
    """Return a group's line: the default first, then as many of the others as a line holds."""
    others = [file.stem for file in sorted(folder.glob("*.yaml")) if file.stem != default]
    names = [*([] if default in (None, "null") else [f"* {default}"]), *others]
    for left in range(len(names)):
        shown = names[: len(names) - left]
        line = f"  {folder.name:<22}{', '.join(shown)}" + (f" +{left}" if left else "")
        if len(line) <= COLUMNS:
            return f"{line}\n"
    return f"  {folder.name}\n"


def _shared_page(main: Path, topic: str = "") -> str:
    """List the commented scalars of the entry config with their meaning: all, or a key and those below it."""
    rows = [row for row in shared_rows(main) if not topic or f"{row[0]}.".startswith(f"{topic}.")]
    lines = (line for name, value, comment in rows for line in _hanging(f"  {name}={value}", comment, columns=36))
    return "".join(f"{line}\n" for line in lines)


def _word(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _hanging(head: str, text: str, *, columns: int) -> list[str]:
    """Lay a meaning next to its word, and below it where either is long."""
    wrapped = textwrap.wrap(text, COLUMNS - columns, break_on_hyphens=False) or [""]
    if len(head) >= columns:
        key, _, value = head.partition("=")
        heads = [head] if len(head) <= COLUMNS else [f"{key}=", f"      {value}"]
        return [*heads, *(" " * columns + line for line in wrapped if line)]
    return [f"{head:<{columns}}{wrapped[0]}".rstrip(), *(" " * columns + line for line in wrapped[1:])]
