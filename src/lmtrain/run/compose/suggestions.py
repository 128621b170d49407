"""The message for a word that no config knows, with the words to type instead.

Names of other programs are looked up in a table (other_programs.py), all of a command in one message; then the nearest
name of ours is looked for by its letters.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from lmtrain.errors import ConfigurationError, did_you_mean, suggest
from lmtrain.run.compose.other_programs import COMMANDS, HUB, OPTIONS, SETTINGS, inverted
from lmtrain.run.compose.paths import (
    MANY_OPTIONS,
    NAMED_BY_PEOPLE,
    conf_folder,
    group_folders,
    is_key_of_training,
    is_text_file,
    key_of,
    option_names,
)

FALSE: Final = ("false", "off", "no", "0")
NOTE: Final = " # "
REASON: Final = "!"
PLAIN: Final = re.compile(r"[^\s'\"\[\]{}$*?!&|;<>()]*")


@dataclass(frozen=True)
class Unknown:
    """A word as typed, and the words to type instead; without any, `note` says why."""

    typed: str
    words: tuple[str, ...] = ()
    note: str = ""
    is_flag: bool = False

    def line(self) -> str:
        """Return one line on the word."""
        instead = " ".join(map(quoted, self.words))
        note = f" ({self.note})" if instead and self.note else self.note
        return f"{self.typed}: {instead}{note}"


def refuse_unknown_words(words: Sequence[str], *, flags: Mapping[str, bool], has_own_options: bool) -> None:
    """Refuse words that belong to no config, all of them in one message.

    `flags` are those of the command, each with whether it takes the next word.

    Raises:
        ConfigurationError: Names of other programs, flags and keys unknown here, or words without a key.
    """
    found = [*_unknown_words(words, flags, has_own_options=has_own_options)]
    if all(each.is_flag for each in found):  # the command's own parser knows its flags
        return
    instead = [*dict.fromkeys(word for each in found for word in each.words)]
    if len(found) == 1:
        (one,) = found
        known = f"write {' '.join(map(quoted, one.words))}" if one.words else one.note
        note = f" ({one.note})" if one.words and one.note else ""
        end = "" if known.endswith(("?", ".")) else "."
        raise ConfigurationError(f"{one.typed}: not a setting of lmtrain; {known}{note}{end}")
    write = f"; write {' '.join(map(quoted, instead))}" if instead else ""
    lines = "\n".join(f"  {each.line()}" for each in found)
    raise ConfigurationError(f"{len(found)} words are not settings of lmtrain{write}.\n{lines}")


def _unknown_words(words: Sequence[str], flags: Mapping[str, bool], *, has_own_options: bool) -> Iterator[Unknown]:
    """Give the words that no config knows, with a value typed behind a flag."""
    taken = -1  # the last word that was the value of another
    for index, word in enumerate(words):
        if index <= taken:
            continue
        name, equals, value = word.partition("=")
        if name in flags:
            taken = index + 1 if flags[name] and not equals else taken
        elif name.startswith("--"):
            if not equals and index + 1 < len(words) and "=" not in words[index + 1] and words[index + 1][:2] != "--":
                taken, value = index + 1, words[index + 1]
            typed = word if equals or not value else f"{word} {value}"
            yield _of_flag(typed, name[2:].replace("-", "_"), value)
        elif equals and name and not name.endswith(" "):
            key = key_of(word)
            if not (is_known_head(key) or word.startswith("~")):
                answer = _of_another_program(word, key, value)
                if answer or not has_own_options:
                    yield answer or Unknown(word, note=f"unknown key {key}.{_nearest(word, key)}")
        elif not word.startswith(("-", "~")):
            raise ConfigurationError(_without_a_key(words, index))


def _nearest(word: str, key: str) -> str:
    """Return the word under the nearest group or key, "" without one."""
    head = re.split(r"[./@]", key)[0]
    return did_you_mean([word.replace(head, each, 1) for each in difflib.get_close_matches(head, _known_heads(), n=1)])


def _of_flag(typed: str, key: str, value: str) -> Unknown:
    if answer := _of_another_program(typed, key, value):
        return answer
    if is_known_head(key):
        return Unknown(typed, (f"{key}={value or 'true'}",), "a key has no dashes")
    return Unknown(typed, note="unknown flag", is_flag=True)


def _of_another_program(typed: str, key: str, value: str) -> Unknown | None:
    """Return the answer of the table for a setting of another program, None for an unknown one."""
    answer = translation(key)
    if answer is None:
        return None
    if answer.startswith(REASON):
        return Unknown(typed, note=answer.removeprefix(REASON))
    text, _, note = answer.partition(NOTE)
    if "{}" not in text and value.lower() in FALSE:
        return Unknown(typed, note="leave it out")
    group, _, option = text.partition("=")
    if option == "{}" and (names := option_names(group)):
        meant = meant_options(group, value, names)
        return Unknown(typed, (f"{group}={meant[0]}",), note) if meant else Unknown(typed, note=f"see --help {group}")
    return Unknown(typed, tuple(word.replace("{}", value or "VALUE") for word in text.split()), note)


def translation(key: str) -> str | None:
    """Return the table's answer for a key of another program, under its section there or alone."""
    table, name = _settings(), key.lower()
    return table.get(name) or (None if name.startswith(NAMED_BY_PEOPLE) else table.get(name.rpartition(".")[2]))


@cache
def _settings() -> dict[str, str]:
    return inverted(SETTINGS)


@cache
def _known_heads() -> frozenset[str]:
    """Return the first words of the keys of all commands' configs."""
    files = (*conf_folder().glob("*.yaml"), *conf_folder().glob("pipeline/*.yaml"))
    text = "\n".join(file.read_text() for file in files)
    groups = {folder.name for folder in group_folders()}
    stages = re.findall(r"^ +-? *name: (\w+)|^ {4,6}(\w+):$", text, re.MULTILINE)
    keys = re.findall(r"^(\w+):", text, re.MULTILINE)
    return frozenset({*groups, *keys, *(name for pair in stages for name in pair if name), "hydra", "pipeline"})


def is_known_head(key: str) -> bool:
    """Return whether a key begins as one of any command: a group, a setting, a stage of a pipeline."""
    return re.split(r"[./@]", key)[0] in _known_heads()


def _without_a_key(words: Sequence[str], index: int) -> str:
    """Return the message for a word that is neither KEY=VALUE nor GROUP=OPTION."""
    word, before, after = words[index], "".join(words[index - 1 : index]), "".join(words[index + 1 : index + 2])
    typed, meant = word, ""
    if word.endswith("=") or after.startswith("=") or re.match(r"[\w.]+ *= ", word):
        typed = word if " " in word else " ".join(words[index : index + (3 if after == "=" else 2)])
        meant = quoted(re.sub(r"\s*=\s*", "=", typed))
    elif after and "=" not in after and is_key_of_training(word.partition(".")[0]):
        typed, meant = f"{word} {after}", quoted(f"{word}={after}")
    elif options := [f"{folder.name}={word}" for folder in group_folders() if (folder / f"{word}.yaml").is_file()]:
        meant = " or ".join(options)
    elif is_text_file(word) or Path(word).is_dir():
        meant = f"source=files {quoted(f'source.paths=[{word}]')}"
    elif "=" in before and not before.startswith("-"):
        typed, meant = f"{before} {word}", shlex.quote(f"{before} {word}")
    write = f"; write {meant}" if meant else ""
    return f"{typed} is not KEY=VALUE or GROUP=OPTION{write}. `--help` lists both."


def unknown_command(command: str, words: Sequence[str], commands: Iterable[str]) -> str:
    """Return the message for a command that is unknown: another program's, settings without one, or misspelled."""
    if ours := inverted(COMMANDS).get(command):
        return f"{command}: unknown command; write {ours}."
    if "=" in command or command.startswith(("-", "~", "[")) or "".join(words[:1]).startswith("="):
        return f"{command}: a command comes first; write lmtrain train {shlex.join([command, *words])}."
    return f"{command}: unknown command.{suggest(command, commands)} `lmtrain --help` lists all."


def meant_options(group: str, option: str, known: Iterable[str]) -> list[str]:
    """Return the options that a word may have meant: by the table, as the beginning of a name, or by its letters."""
    word, names = re.sub(r"[-. ]", "_", option.lower()), sorted(known)
    if word in names:
        return [word]
    if ours := inverted(OPTIONS.get(group, {})).get(word):
        return [ours]
    begins = [name for name in names if name.startswith(f"{word}_")]
    return begins[:2] or difflib.get_close_matches(word, names, n=1, cutoff=0.6)


def unknown_option(group: str, option: str, options: Iterable[str]) -> str:
    """Name the nearest options of a word; without one, all of them."""
    known = sorted(options)
    near = did_you_mean(
        [name if group in MANY_OPTIONS else f"{group}={name}" for name in meant_options(group, option, known)]
    )
    if near:
        return f"{group}={option}: unknown option.{near} `--help {group}` lists all {len(known)}."
    hub = f"; {HUB[group]}" if group in HUB else ""
    return f"{group}={option}: unknown option; {group} has {', '.join(known)}{hub}."


def unknown_key(key: str, *, typed: str, config: Mapping[str, Any]) -> str:
    """Name the keys of a key's node in a composed config, and the options that have such a key."""
    from lmtrain.run.compose.group_options import options_with_key  # YAML: only to refuse
    from lmtrain.run.schema.node import leaf_keys, node_at

    parent, _, name = key.rpartition(".")
    group, value = key.partition(".")[0], typed.partition("=")[2]
    answer = _of_another_program(typed, key, value)
    if answer and answer.words and answer.words != (f"{key}={value}",):
        return f"{typed}: unknown key {key}; write {' '.join(map(quoted, answer.words))}."
    siblings = [each for each in leaf_keys(config) if each.rpartition(".")[0] == parent]
    if parent and siblings:
        names = [each.rpartition(".")[2] for each in siblings]
        has = f"{parent} has {', '.join(names)}"
    else:
        names, has = [*config], f"{parent} is switched off" if parent and node_at(config, group) else ""
    options = options_with_key(key)
    where = f"{name} is a setting of {group}={', '.join(options)}" if options else ""
    near = [] if options else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    whole = did_you_mean([f"{parent}.{each}={value}".lstrip(".") for each in near])
    return f"{typed}: unknown key {'; '.join(filter(None, (key, has, where)))}.{whole}"


def number_as_option(problem: str, overrides: Iterable[str]) -> str | None:
    """Name an option typed as a number, such as precision=16, which Hydra's message does not; None for another."""
    if "Config group override must be" not in problem:
        return None
    for text in overrides:
        group, _, option = text.lstrip("+~").partition("=")
        options = option_names(group) if group else []
        if options and option not in options and not option.startswith("["):
            return unknown_option(group, option, options)
    return None


def unreadable(override: str) -> str:
    """Return the message for an override that Hydra cannot parse."""
    key, _, value = override.partition("=")
    if re.match(r"(interval|choice|range)\(", value):
        return f"{override}: its value cannot be read; write {key}=interval(LOW,HIGH) or choice(A,B)."
    text = shlex.quote(f'{key}="{value}"')
    return f"{override}: its value cannot be read. Brackets and quotes come in pairs; a text stands in quotes: {text}."


def quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    return word if PLAIN.fullmatch(word) else shlex.quote(word)
