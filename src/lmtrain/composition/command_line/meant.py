"""The intended command, where a word belongs to other programs: found in the words alone, before Hydra.

The first words of a new user are `lr=1e-3`, `--epochs 3` or `batch_size=32`: each has a key here, under another name.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.composition.command_line.equivalents import (
    FALSE,
    NO_VALUE,
    SWITCHES,
    TRUE,
    Equivalent,
    chosen,
    equivalent,
    name_elsewhere,
    quoted,
)
from lmtrain.composition.command_line.flags import has_own_folder, known_flags
from lmtrain.composition.command_line.paths import conf_folder, is_key_of_training
from lmtrain.errors import ConfigurationError

FLAGS_OF_HYDRA: Final = ("run", "hydra")  # refused with a replacement elsewhere
AMOUNT: Final = re.compile(r"[\d.]+")
UNIT: Final = re.compile(r"[A-Za-z]{1,4}")
NO_SPACE: Final = "no space belongs around ="
GOES_ON: Final = "or nothing: the same command again goes on with its run"
# A key of ours typed as a switch: the words to type, by its value.
SWITCHED: Final = {
    "resume": {
        **dict.fromkeys(TRUE, Equivalent(("resume=must",), GOES_ON)),
        **dict.fromkeys(FALSE, Equivalent(("resume=never",), "a new run in place of the one there")),
    },
}
FILES: Final = (".yaml", ".yml", ".py", ".toml", ".json")


class MeantWord(ConfigurationError):
    """An unknown word, with the reason and the words to type instead."""

    def __init__(self, typed: str, reason: str, meant: str) -> None:
        super().__init__(f"{typed}: {reason}; write {meant}.")
        self.typed, self.reason, self.meant = typed, reason, meant


def refuse_foreign_words(words: Sequence[str], *, flags: frozenset[str]) -> None:
    """Refuse words invalid in every config, each with the word to type instead; `flags` take the word after them.

    Raises:
        MeantWord: A key of other programs, a key with dashes, spaces around the equals sign or in a value, a list
            without a key.
        ConfigurationError: A word instead of a setting.
    """
    last = ""  # the override before this word
    foreign: list[_Foreign] = []
    for index, word in enumerate(words):
        previous, following = (words[index - 1] if index else ""), words[index + 1 : index + 2]
        if word.startswith("--"):
            foreign += _with_dashes(word, following, words, known=flags)
        if word.startswith("-") or ((previous in flags or previous.startswith("--")) and "=" not in word):
            continue
        _refuse_spaces(words, index, last)
        foreign += _called_elsewhere(word, words)
        _refuse_switch(word)
        last = word
    if foreign:
        raise _refusal(foreign, unknown_beside(words, [each.typed for each in foreign]))


def unknown_beside(words: Sequence[str], answered: Sequence[str]) -> list[str]:
    """Return a line for each word that no command here knows, but for those `answered` already."""
    if has_own_folder(words):
        return []
    found: list[str] = []
    for word in words:
        name, equals, _ = word.partition("=")
        if any(f"{each} ".startswith(f"{word} ") for each in answered) or word.startswith("~"):
            continue
        if word.startswith("--") and name not in known_flags():
            found.append(f"{name}: there is no such flag")
        elif equals and not word.startswith("-") and not is_known_head(name.lstrip("+")):
            found.append(f"{word}: there is no key {name.lstrip('+')}")
    return found


def is_known_head(key: str) -> bool:
    """Tell whether a key begins as one of any command here: a group, a setting, a training of a pipeline."""
    head = re.split(r"[./@]", key)[0]
    if is_key_of_training(head) or head in ("hydra", "pipeline"):
        return True
    files = (*conf_folder().glob("*.yaml"), *conf_folder().glob("pipeline/*.yaml"))
    named = re.compile(rf"^(?:\W*name: {re.escape(head)}\b|[ -]*{re.escape(head)}:)", re.MULTILINE)
    return any(named.search(file.read_text()) for file in files)


@dataclass(frozen=True)
class _Foreign:
    typed: str
    key: str
    meant: Equivalent


def _refusal(foreign: Sequence[_Foreign], unknown: Sequence[str]) -> ConfigurationError:
    """Return one message for all of these words: whoever knows another program types several."""
    named = [each for each in foreign if each.meant.words]
    left_out = [f"{each.typed}: {each.meant.note}; leave it out" for each in foreign if not each.meant.words]
    left_out += unknown
    if not named:
        return ConfigurationError(f"{'; '.join(left_out)}.")
    notes = [*dict.fromkeys(each.meant.note for each in named if each.meant.note), *left_out]
    meant = dict.fromkeys(word for each in named for word in each.meant.words)
    keys = [each.key for each in named if not each.typed.startswith("--")]
    reason = f"there {'is no key' if len(keys) == 1 else 'are no keys'} {', '.join(keys)}"
    return MeantWord(
        " ".join(each.typed for each in named),
        reason if len(keys) == len(named) else "a key has no dashes",
        " ".join(map(quoted, meant)) + (f" ({'; '.join(notes)})" if notes else ""),
    )


def _with_dashes(word: str, following: Sequence[str], words: Sequence[str], *, known: frozenset[str]) -> list[_Foreign]:
    """Return `--lr 1e-3` or `--optimizer.lr=1e-3`; a flag of ours, or an unknown one, is for its parser."""
    name, equals, value = word[2:].partition("=")
    key = name.replace("-", "_")
    elsewhere = name_elsewhere(key)
    is_ours = key not in FLAGS_OF_HYDRA and is_key_of_training(key)
    if f"--{name}" in known or not (is_ours or elsewhere or ("." in key and is_known_head(key))):
        return []
    is_switch = elsewhere in SWITCHES or key in SWITCHED
    takes_next = not equals and following and "=" not in following[0] and not following[0].startswith("-")
    value = value if equals else following[0] if takes_next else "true" if is_switch else NO_VALUE
    typed = f"{word} {value}" if takes_next else word
    if elsewhere:
        return [_Foreign(typed, key, equivalent(elsewhere, value, words))]
    return [_Foreign(typed, key, SWITCHED.get(key, {}).get(value.lower()) or chosen(key, value, words))]


def _refuse_switch(word: str) -> None:
    """Refuse `resume=true`."""
    key, _, value = word.lstrip("+").partition("=")
    if meant := SWITCHED.get(key, {}).get(value.lower()):
        raise MeantWord(word, f"{key} is no switch", f"{' '.join(meant.words)} ({meant.note})")


def _refuse_spaces(words: Sequence[str], index: int, last: str) -> None:
    """Refuse a word without `=`: most often the rest of a word cut by the shell at a space."""
    word, following = words[index], words[index + 1 : index + 2]
    if word.endswith("=") and not word.startswith("=") and following and "=" not in following[0]:
        raise MeantWord(f"{word} {following[0]}", NO_SPACE, f"{word}{quoted(following[0])}")
    if "=" in word or word.startswith("~"):
        return
    if following and following[0].startswith("="):
        value = following[0][1:] or "".join(words[index + 2 : index + 3])
        typed = " ".join(words[index : index + (2 if following[0][1:] else 3)])
        raise MeantWord(typed, NO_SPACE, f"{word}={quoted(value)}")
    if following and is_key_of_training(word):
        _refuse_apart(word, following[0])
    if following and _is_key(word) and "=" not in following[0] and not following[0].startswith("-"):
        raise MeantWord(f"{word} {following[0]}", "a key and its value are one word", f"{word}={quoted(following[0])}")
    key, equals, value = last.partition("=")
    rest = " ".join([word, *_until_override(words[index + 1 :])])
    if equals and last == words[index - 1]:
        raise MeantWord(f"{last} {rest}", "a space ends a value", _joined(key, value, rest))
    if word.startswith("["):
        items = ", ".join(re.split(r"[\s,]+", rest.strip("[], ")))
        raise MeantWord(rest, "a list is the value of a key", f"source=files 'source.paths=[{items}]'")
    fix = "`--help` lists both"
    if word.endswith(FILES):
        fix += "; settings in a file are FOLDER/experiment/NAME.yaml, by --config-dir FOLDER experiment=NAME"
    raise ConfigurationError(f"{word} is not KEY=VALUE or GROUP=OPTION; {fix}.")


def _refuse_apart(node: str, word: str) -> None:
    """Refuse `optimizer lr=1e-3`, `run name=notes` and `optimizer adamw`."""
    name, equals, _ = word.partition("=")
    if equals and name.isidentifier() and not is_key_of_training(name):
        raise MeantWord(f"{node} {word}", "a key is one word", f"{node}.{word}")
    if not equals and (conf_folder() / node / f"{word}.yaml").is_file():
        raise MeantWord(f"{node} {word}", "a group and its option are one word", f"{node}={word}")


def _is_key(word: str) -> bool:
    """Tell whether a word is the key of a group's setting, as optimizer.lr."""
    group, dot, name = word.partition(".")
    return bool(dot and name) and ((conf_folder() / group).is_dir() or group in ("batch", "run", "sweep"))


def _called_elsewhere(word: str, words: Sequence[str]) -> list[_Foreign]:
    key, equals, value = word.lstrip("+").partition("=")
    name = name_elsewhere(key) if equals else ""
    return [_Foreign(word, key, equivalent(name, value, words))] if name else []


def _until_override(words: Sequence[str]) -> list[str]:
    stop = next((index for index, word in enumerate(words) if "=" in word or word.startswith(("-", "~"))), len(words))
    return [*words[:stop]]


def _joined(key: str, value: str, rest: str) -> str:
    if AMOUNT.fullmatch(value) and UNIT.fullmatch(rest):
        return f"{key}={value}{rest}"
    if key == "run.name":
        return f"{key}={'_'.join([value, *rest.split()])}"
    return shlex.quote(f"{key}={value} {rest}")
