"""The message for a word that no config knows, with the words to type instead.

Names of other programs are looked up in a table (other_programs.py); then our nearest name is looked up by its letters.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, did_you_mean, nearest, suggest
from lmtrain.run.compose.option_files import default_options, shared_keys
from lmtrain.run.compose.other_programs import HUB, OPTIONS, SETTINGS, inverted
from lmtrain.run.compose.paths import (
    MANY_OPTIONS,
    NAMED_BY_PEOPLE,
    SHORT_KEYS,
    conf_folder,
    group_folders,
    key_of,
    option_names,
)

FALSE: Final = ("false", "off", "no", "0")
NOTHING: Final = (*FALSE, "null")
TRUE: Final = ("true", "on", "yes", "1")
LEAVE_OUT: Final = "to leave it out"
TEXT: Final = re.compile(r"\.(?:txt|md|jsonl|csv|parquet)(?:\.gz|\.zst)?$")


def refuse_unknown_words(words: Sequence[str], *, has_own_options: bool) -> None:
    """Refuse the words that belong to no config, all in one message; unknown flags are left to the command's parser.

    A user's own options may have more keys.
    """
    found: list[tuple[str, str | None]] = []  # the messages, and what to type instead
    is_value = False  # of the flag before it
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            key, value = name[2:].replace("-", "_"), value or ("" if "=" in after else after)
            if instead := instead_of(key, value, here=f"{key}={{}}" if is_known_head(key) else None):
                found.append((f"{word}: unknown flag. Did you mean {instead}?", instead))
        elif not equals or not name:
            if not (is_value or word.startswith(("-", "~"))):
                raise ConfigurationError(_without_a_key(word, after))
        elif not (word.startswith("~") or is_known_head(key_of(word))):
            message, instead = _of_key(word)
            if instead or not has_own_options:
                found.append((message, instead))
        is_value = word.startswith("--") and not equals
    if len(found) == 1:
        raise ConfigurationError(found[0][0])
    if found:
        lines = "\n".join(f"  {message}" for message, _ in found)
        given = dict.fromkeys(re.sub(r" \(.*\)$", "", instead) for _, instead in found if instead)
        typed = " ".join(word for word in given if word != LEAVE_OUT)
        write = f"; write {typed}" if typed else ""
        raise ConfigurationError(f"{len(found)} words are not settings of lmtrain{write}.\n{lines}")


def _of_key(word: str) -> tuple[str, str | None]:
    """Return the message for a key of another program or close to ours, and what to type in its place."""
    key, value = key_of(word), word.partition("=")[2]
    head = re.split(r"[./@]", key)[0]
    values = {*value.strip("[]").split(",")}  # several options, or a sweep's
    near = difflib.get_close_matches(head, _known_heads(), n=2)
    fitting = [each for each in near if key != head or not (known := option_names(each)) or values <= {*known}]
    instead = instead_of(key, value)
    meant = f" Did you mean {instead}?" if instead else did_you_mean([word.replace(head, each) for each in fitting[:1]])
    meant = meant or " `lmtrain train --help` lists all settings."
    return f"{word}: unknown key {key}.{meant}", instead


def instead_of(key: str, value: str, *, here: str | None = None) -> str | None:
    """Return what to type for a setting of another program, under its section there or alone; else `here`.

    `{}` is filled with the value: of a group, with the option that it may have meant; an empty one, with the default.
    Keys that people name themselves are looked up whole.
    """
    names = inverted(SETTINGS)
    alone = "" if key.startswith(NAMED_BY_PEOPLE) else key.rpartition(".")[2]
    found = names.get(key.lower()) or names.get(alone.lower()) or here
    if found is None:
        return None
    if "{}" not in found and value.lower() in FALSE:
        return LEAVE_OUT
    group, _, rest = found.partition("=")
    if rest == "{}" and group not in MANY_OPTIONS:
        value = next(iter(_meant_options(group, value or "true", option_names(group))), value)
    main = conf_folder() / "train.yaml"
    usual = {**default_options(main), **shared_keys(main)}.get(group, "null")
    return found.replace("{}", value or {"null": "VALUE", "false": "true"}.get(usual, usual))


@cache
def _known_heads() -> frozenset[str]:
    """Return the first words of the keys of all commands' configs."""
    files = (*conf_folder().glob("*.yaml"), *conf_folder().glob("pipeline/*.yaml"))
    text = "\n".join(file.read_text() for file in files)
    groups = {folder.name for folder in group_folders()}
    stages = re.findall(r"^ +-? *name: (\w+)|^ {4,6}(\w+):$", text, re.MULTILINE)
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    names = {name for pair in stages for name in pair if name}
    return frozenset({*groups, *keys, *names, *SHORT_KEYS, "hydra", "pipeline"})


def is_known_head(key: str) -> bool:
    """Return whether a key begins as one of any command: a group, a setting, a stage of a pipeline."""
    return re.split(r"[./@]", key)[0] in _known_heads()


def _without_a_key(word: str, after: str) -> str:
    """Return the message for a word that is neither KEY=VALUE nor GROUP=OPTION."""
    options = [f"{folder.name}={word}" for folder in group_folders() if (folder / f"{word}.yaml").is_file()]
    if TEXT.search(word) or Path(word).is_dir():
        options = [f"source=files source.paths=[{word}]"]
    elif after and "=" not in after and is_known_head(word):
        options = [f"{word}={after}"]
    return f"{word}: must be KEY=VALUE or GROUP=OPTION, as `--help` lists them.{did_you_mean(options)}"


def unknown_command(command: str, words: Sequence[str], commands: Iterable[str]) -> str:
    """Return the message for a command that is unknown: settings without one, or misspelled."""
    if "=" in command or command.startswith(("-", "~", "[")):
        meant = f" Did you mean lmtrain train {shlex.join([command, *words])}?"
    else:
        meant = suggest(command, commands)
    return f"{command}: unknown command.{meant} `lmtrain --help` lists all."


def _meant_options(group: str, option: str, known: Iterable[str]) -> list[str]:
    """Return the options that a word may have meant: by the table, as the beginning of a name, or by its letters."""
    name, known = re.sub(r"[-. ]", "_", option.lower()), sorted(known)
    if name in known:
        return [name]
    if meant := inverted(OPTIONS.get(group, {})).get(name):
        return [meant]
    if (usual := "none" if name in NOTHING else "auto" if name in TRUE else "") in known:
        return [usual]
    longer = [each for each in known if each.startswith(f"{name}_")]
    return longer or nearest(name, known)


def unknown_option(group: str, option: str, options: Iterable[str]) -> str:
    """Name the nearest option of a word, by the table or by its letters; without one, all of them."""
    known = sorted(options)
    near = _meant_options(group, option, known)
    if near:
        words = did_you_mean(near if group in MANY_OPTIONS else [f"{group}={near[0]}"])
        return f"{group}={option}: unknown option.{words} `--help {group}` lists all {len(known)}."
    hub = f"; {HUB[group]}" if group in HUB else ""
    return f"{group}: must be one of {', '.join(known)}, got {option}{hub}."


def unknown_key(key: str, *, typed: str, config: Mapping[str, Any]) -> str:
    """Name the keys of a key's node in a composed config, and the options that have such a key."""
    from lmtrain.run.compose.group_options import options_with_key  # YAML: only to refuse
    from lmtrain.run.schema.node import node_at
    from lmtrain.run.schema.targets import OPTION

    parent, _, name = key.rpartition(".")
    value = typed.partition("=")[2]
    instead = instead_of(key, value)
    if instead and not instead.startswith(f"{key}="):
        return f"{typed}: unknown key {key}. Did you mean {instead}?"
    node: Any = node_at(config, parent)
    settings = node if isinstance(node, Mapping) else {}
    names = [str(each) for each in settings if each != OPTION and not str(each).startswith("_")]
    said = [key, f"{parent} has {', '.join(names)}" if parent and names else ""]
    if options := options_with_key(key):
        said.append(f"{name} is a setting of {key.partition('.')[0]}={', '.join(options)}")
    near = [] if options else nearest(name, names)
    before, _, after = typed.partition(key)
    whole = did_you_mean([f"{before}{f'{parent}.{each}'.lstrip('.')}{after}" for each in near])
    return f"{typed}: unknown key {'; '.join(filter(None, said))}.{whole}"


def unreadable(override: str) -> str:
    """Return the message for an override that Hydra cannot parse."""
    key, _, value = override.partition("=")
    if re.match(r"(interval|choice|range)\(", value):
        return f"{override}: its value cannot be read; write {key}=interval(LOW,HIGH) or choice(A,B)."
    text = shlex.quote(f'{key}="{value}"')
    return f"{override}: its value cannot be read. Brackets and quotes come in pairs; a text stands in quotes: {text}."
