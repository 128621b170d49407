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
    SHORT_KEYS,
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

    @property
    def answer(self) -> str:
        """Return the words to type and the note."""
        instead = " ".join(map(quoted, self.words))
        return f"{instead} ({self.note})" if instead and self.note else instead or self.note


def refuse_unknown_words(words: Sequence[str], *, has_own_options: bool) -> None:
    """Refuse words that belong to no config, all of them in one message."""
    found = [*_unknown_words(words, has_own_options=has_own_options)]
    if all(each.is_flag for each in found):  # the command's own parser knows its flags
        return
    if len(found) == 1:
        (one,) = found
        answer = f"write {one.answer}" if one.words else one.answer
        raise ConfigurationError(f"{one.typed}: not a setting of lmtrain; {answer}{'' if answer[-1] == '?' else '.'}")
    instead = [*dict.fromkeys(word for each in found for word in each.words)]
    write = f"; write {' '.join(map(quoted, instead))}" if instead else ""
    lines = "\n".join(f"  {each.typed}: {each.answer}" for each in found)
    raise ConfigurationError(f"{len(found)} words are not settings of lmtrain{write}.\n{lines}")


def _unknown_words(words: Sequence[str], *, has_own_options: bool) -> Iterator[Unknown]:
    """Give the words that no config knows, each flag with the value typed behind it."""
    taken = -1  # the last word that was the value of another
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if index <= taken:
            continue
        if name.startswith("--"):
            after = "".join(words[index + 1 : index + 2])
            if not equals and after and "=" not in after and not after.startswith("--"):
                taken, value = index + 1, after
            yield _of_flag(word if equals or not value else f"{word} {value}", name[2:].replace("-", "_"), value)
        elif equals and name and not name.endswith(" "):
            key = key_of(word)
            if not (is_known_head(key) or word.startswith("~")):
                answer = _of_another_program(word, key, value)
                if answer or not has_own_options:
                    head = re.split(r"[./@]", key)[0]
                    heads = difflib.get_close_matches(head, _known_heads(), n=2)
                    heads.sort(key=lambda each: value not in option_names(each))
                    near = did_you_mean([word.replace(head, each, 1) for each in heads[:1]])
                    yield answer or Unknown(word, note=f"unknown key {key}{near and '.'}{near}")
        elif not word.startswith(("-", "~")):
            raise ConfigurationError(_without_a_key(words, index))


def _of_flag(typed: str, key: str, value: str) -> Unknown:
    if answer := _of_another_program(typed, key, value):
        return answer
    if is_known_head(key):
        return Unknown(typed, (f"{key}={value or 'true'}",), "a key has no dashes")
    return Unknown(typed, note="unknown flag", is_flag=True)


def _of_another_program(typed: str, key: str, value: str) -> Unknown | None:
    """Return the table's answer for a setting of another program, under its section there or alone; else None."""
    table, name = _settings(), key.lower()
    alone = "" if name.startswith(NAMED_BY_PEOPLE) else name.rpartition(".")[2]
    answer = table.get(name) or table.get(alone)
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
    names = {name for pair in stages for name in pair if name}
    return frozenset({*groups, *keys, *names, *SHORT_KEYS, "hydra", "pipeline"})


def is_known_head(key: str) -> bool:
    """Return whether a key begins as one of any command: a group, a setting, a stage of a pipeline."""
    return re.split(r"[./@]", key)[0] in _known_heads()


def _without_a_key(words: Sequence[str], index: int) -> str:
    """Return the message for a word that is neither KEY=VALUE nor GROUP=OPTION."""
    word, after = words[index], "".join(words[index + 1 : index + 2])
    options = [f"{folder.name}={word}" for folder in group_folders() if (folder / f"{word}.yaml").is_file()]
    typed, meant = word, " or ".join(options)
    if word.endswith("=") or after.startswith("="):
        typed = " ".join(words[index : index + (3 if after == "=" else 2)])
        meant = quoted(re.sub(r"\s*=\s*", "=", typed))
    elif after and "=" not in after and is_key_of_training(word.partition(".")[0]):
        typed, meant = f"{word} {after}", quoted(f"{word}={after}")
    elif is_text_file(word) or Path(word).is_dir():
        meant = f"source=files {quoted(f'source.paths=[{word}]')}"
    write = f"; write {meant}" if meant else ""
    return f"{typed} is not KEY=VALUE or GROUP=OPTION{write}. `--help` lists both."


def unknown_command(command: str, words: Sequence[str], commands: Iterable[str]) -> str:
    """Return the message for a command that is unknown: another program's, settings without one, or misspelled."""
    if ours := inverted(COMMANDS).get(command):
        return f"{command}: unknown command; write {ours}."
    if "=" in command or command.startswith(("-", "~", "[")):
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
    return begins[:2] or [name for name in nearest(word, names) if group != "model" or _is_of_family(name, word)]


def _is_of_family(name: str, word: str) -> bool:
    """Return whether a model has the family and the version typed, as in qwen_2_5_7b: others are not meant."""
    families = [re.match(r"([a-z]*)_?(\d+_(?=\d))?", each) for each in (word, name)]
    (letters, version), (of_name, of_version) = (found.groups() if found else ("", None) for found in families)
    is_near = difflib.SequenceMatcher(None, letters, of_name).ratio() > 0.75
    return is_near and version in (None, of_version)


def unknown_option(group: str, option: str, options: Iterable[str]) -> str:
    """Name the nearest options of a word; without one, all of them."""
    known = sorted(options)
    near = meant_options(group, option, known)
    if near:
        words = did_you_mean(near if group in MANY_OPTIONS else [f"{group}={name}" for name in near])
        return f"{group}={option}: unknown option.{words} `--help {group}` lists all {len(known)}."
    hub = f"; {HUB[group]}" if group in HUB else ""
    return f"{group}={option}: unknown option; {group} has {', '.join(known)}{hub}."


def unknown_key(key: str, *, typed: str, config: Mapping[str, Any]) -> str:
    """Name the keys of a key's node in a composed config, and the options that have such a key."""
    from lmtrain.run.compose.group_options import options_with_key  # YAML: only to refuse
    from lmtrain.run.schema.node import node_at

    parent, _, name = key.rpartition(".")
    value = typed.partition("=")[2]
    answer = _of_another_program(typed, key, value)
    if answer and answer.words and answer.words != (f"{key}={value}",):
        return f"{typed}: unknown key {key}; write {answer.answer}."
    node: Any = node_at(config, parent)
    names = [str(each) for each in node if not str(each).startswith("_")] if isinstance(node, Mapping) else []
    said = [key, f"{parent} has {', '.join(names)}" if parent and names else ""]
    if options := options_with_key(key):
        said.append(f"{name} is a setting of {key.partition('.')[0]}={', '.join(options)}")
    near = [] if options else nearest(name, names)
    whole = did_you_mean([f"{parent}.{each}={value}".lstrip(".") for each in near])
    return f"{typed}: unknown key {'; '.join(filter(None, said))}.{whole}"


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return the nearest name by its letters, or an empty list."""
    return difflib.get_close_matches(word, [*names], n=1, cutoff=0.6)


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
