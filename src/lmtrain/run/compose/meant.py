"""The intended command, where a word belongs to other programs: found in the words alone, before Hydra.

The first words of a new user are `lr=1e-3`, `--epochs 3` or `batch_size=32`: each has a key here, under another name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flags import has_own_folder, known_flags
from lmtrain.run.compose.foreign.equivalents import (
    NO_VALUE,
    Together,
    answered_together,
    chosen,
    equivalent,
    is_switch,
    switched,
)
from lmtrain.run.compose.foreign.table import (
    Equivalent,
    name_elsewhere,
    options_of,
    quoted,
    settings_elsewhere,
)
from lmtrain.run.compose.meant_options import option_meant, why_nearest
from lmtrain.run.compose.paths import conf_folder, is_key_of_training

FLAGS_OF_HYDRA: Final = ("run", "hydra")  # refused with a replacement elsewhere
NO_SPACE: Final = "no space belongs around ="


class MeantWord(ConfigurationError):
    """An unknown word, with the reason and the words to type instead; of several words a line each."""

    def __init__(self, typed: str, reason: str, meant: str, lines: Sequence[str] = ()) -> None:
        super().__init__("\n".join((f"{typed}: {reason}; write {meant}.", *(f"  {line}" for line in lines))))
        self.typed, self.reason, self.meant, self.lines = typed, reason, meant, lines
        self.foreign: ForeignWords | None = None


class CutValue(MeantWord):
    """A value cut at a space: the `whole` words in the place of its parts, beside the command's `own` ones."""

    def __init__(self, last: str, rest: Sequence[str], own: Sequence[str]) -> None:
        from lmtrain.run.compose.cut_values import in_a_shell, joined_words  # only to refuse

        self.last, self.rest, self.own = last, " ".join(rest), own
        self.whole = joined_words(last, rest, own)
        super().__init__(f"{last} {self.rest}", "a space ends a value", in_a_shell(self.whole))


def refuse_foreign_words(words: Sequence[str], *, flags: frozenset[str]) -> None:
    """Refuse words invalid in every config, each with the word to type instead; `flags` take the word after them.

    Raises:
        MeantWord: A key of other programs, a key with dashes, spaces around the equals sign or in a value, a list
            without a key.
        ConfigurationError: A word instead of a setting.
    """
    last = ""  # the override before this word
    foreign: list[ForeignWord] = []
    answered: set[int] = set()
    for index, word in enumerate(words):
        previous, following = (words[index - 1] if index else ""), words[index + 1 :]
        if index in answered:
            continue
        is_value = previous in flags or (
            previous.startswith("--") and "=" not in previous and index - 1 not in answered
        )
        found: list[ForeignWord] = []
        if word.startswith("--"):
            found = _with_dashes(word, following, words, known=flags)
        elif not word.startswith("-") and ("=" in word or not is_value):
            found = _alone(words, index, last if last == previous else "")
            if not found:
                _refuse_spaces(words, index, last)
                found = _called_elsewhere(word, words)
            last = word
        if found:
            answered |= {*range(index, index + 1 + max(each.num_taken for each in found))}
            foreign += found
    if foreign:
        raise _refusal(foreign, words, answered)


def _refusal(foreign: Sequence["ForeignWord"], words: Sequence[str], answered: set[int]) -> ConfigurationError:
    """Return the refusal of such words, of options of others beside them, and of words known nowhere."""
    from lmtrain.run.compose.foreign.clusters import on_cluster  # only to refuse

    options = [each for each in _options_elsewhere(words) if each.typed not in {one.typed for one in foreign}]
    found = [replace(each, meant=on_cluster(each.meant, words)) for each in (*foreign, *options)]
    theirs = {word for index, word in enumerate(words) if index in answered} | {each.typed for each in options}
    own = [word for word in words if word not in theirs and not unknown_beside([word], [])]
    whole = ForeignWords(found, own, unknown_beside(words, [each.typed for each in found]))
    return whole.refusal(answered_together([each.meant for each in found], own))


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
class ForeignWord:
    """A word of other programs, with its key and its answer; `num_taken` words after a flag are its value."""

    typed: str
    key: str
    meant: Equivalent
    num_taken: int = 0

    @property
    def reason(self) -> str:
        """Return the rule that the word breaks."""
        if self.typed.startswith("--"):
            return "a key has no dashes"
        if "=" not in self.typed:
            return "a text is the value of a key"
        is_ours = self.key in settings_elsewhere().values or is_key_of_training(self.key)
        return f"{self.key} has no such value" if is_ours else f"there is no key {self.key}"

    @property
    def answer(self) -> str:
        """Return the words to type, with their note, or the reason why there are none."""
        words, note = " ".join(map(quoted, self.meant.words)), self.meant.note
        if not words:
            return f"{note}; leave it out" if self.meant.is_needless else note
        return f"{words} ({note})" if note else words

    def line(self, instead: Mapping[str, str]) -> str:
        """Return the answer behind the word, unless it names that itself, with the words in place of its own."""
        names_it = not self.meant.words and self.answer.startswith(f"{self.key}=")
        named = self.answer if names_it else f"{self.typed}: {self.answer}"
        return named + "".join(f", but {instead[word]} stands" for word in self.meant.words if word in instead)


@dataclass(frozen=True)
class ForeignWords:
    """All such words of a command, its own ones, and a line for each known nowhere."""

    words: Sequence[ForeignWord]
    own: Sequence[str]
    unknown: Sequence[str]

    def on_nodes(self) -> ConfigurationError:
        """Return the refusal with the keys of a launch, which are the cluster's."""
        from lmtrain.run.compose.foreign.clusters import of_nodes  # only to refuse

        there = replace(self, words=[replace(each, meant=of_nodes(each.meant)) for each in self.words])
        return there.refusal(answered_together([each.meant for each in there.words], self.own))

    def refusal(self, together: Together) -> ConfigurationError:
        """Return one message for all of them: whoever knows another program types several."""
        lines = [*(each.line(together.instead) for each in self.words), *together.notes, *self.unknown]
        if not together.words:
            return ConfigurationError("\n".join(line if line.endswith("?") else f"{line}." for line in lines))
        meant = " ".join(map(quoted, together.words))
        if len(self.words) > 1 or self.unknown:
            found = MeantWord(f"{len(self.words) + len(self.unknown)} words", "names in other programs", meant, lines)
        else:
            one = self.words[0]
            notes = "; ".join(note for note in (one.meant.note, *together.notes) if note)
            found = MeantWord(one.typed, one.reason, meant + (f" ({notes})" if notes else ""))
        found.foreign = self
        return found


def _with_dashes(
    word: str, following: Sequence[str], words: Sequence[str], *, known: frozenset[str]
) -> list[ForeignWord]:
    """Return `--lr 1e-3` or `--optimizer.lr=1e-3`; a flag of ours, or an unknown one, is for its parser."""
    name, equals, value = word[2:].partition("=")
    key = name.replace("-", "_")
    elsewhere = name_elsewhere(key)
    is_ours = key not in FLAGS_OF_HYDRA and is_key_of_training(key)
    if f"--{name}" in known or not (is_ours or elsewhere or ("." in key and is_known_head(key))):
        return []
    values = [] if equals else _until_override(following)
    if not elsewhere:
        values = values[:1]
    if not equals:
        value = ",".join(values) or ("true" if is_switch(elsewhere or key) else NO_VALUE)
    typed = " ".join((word, *values))
    if elsewhere:
        return [ForeignWord(typed, key, equivalent(elsewhere, value, words), len(values))]
    return [ForeignWord(typed, key, switched(key, value, words) or chosen(key, value, words), len(values))]


def _alone(words: Sequence[str], index: int, last: str) -> list[ForeignWord]:
    """Return a text, or a file of settings, without a key."""
    if re.search(r"=|^~", words[index]) or words[index + 1 : index + 2][:1] == ["="]:
        return []
    from lmtrain.run.compose.bare_words import place_alone  # only to refuse

    place = place_alone(words[index:], last)
    return [ForeignWord(" ".join(words[index : index + place[0]]), "", place[1], place[0] - 1)] if place else []


def _refuse_spaces(words: Sequence[str], index: int, last: str) -> None:
    """Refuse a word without `=`: most often the rest of a word cut by the shell at a space."""
    word, following = words[index], words[index + 1 : index + 2]
    if word.endswith("=") and not word.startswith("=") and following and "=" not in following[0]:
        raise MeantWord(f"{word} {following[0]}", NO_SPACE, f"{word}{quoted(following[0])}")
    if (spaced := re.fullmatch(r"([\w.+@/]+)\s+=\s*(\S.*)", word)) is not None:
        from lmtrain.run.compose.cut_values import in_a_shell, joined_words  # only to refuse

        value, *rest = spaced[2].split()
        meant = joined_words(f"{spaced[1]}={value}", rest, words) if rest else [f"{spaced[1]}={value}"]
        raise MeantWord(word, NO_SPACE, in_a_shell(meant))
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
    from lmtrain.run.compose.bare_options import bare_options  # only to refuse

    bare, meant = bare_options(words[index:], last=last if last == words[index - 1] else "")
    if bare:
        raise MeantWord(" ".join(bare), "an option stands behind its group, a value behind its key", " ".join(meant))
    cut = [word, *_until_override(words[index + 1 :])]
    rest = " ".join(cut)
    if "=" in last and last == words[index - 1]:
        raise CutValue(last, cut, [*words[: index - 1], *words[index + len(cut) :]])
    if word.startswith("["):
        items = ", ".join(re.split(r"[\s,]+", rest.strip("[], ")))
        raise MeantWord(rest, "a list is the value of a key", f"source=files 'source.paths=[{items}]'")
    raise ConfigurationError(f"{word} is not KEY=VALUE or GROUP=OPTION; `--help` lists both.")


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


def _options_elsewhere(words: Sequence[str]) -> list[ForeignWord]:
    """Return options of groups under their names elsewhere; one alone is told by composing."""
    found: list[ForeignWord] = []
    for word in words:
        group, equals, value = word.partition("=")
        known = options_of(group) if equals and group.isidentifier() else set[str]()
        if known and value not in known and (meant := option_meant(group, value, known)):
            found.append(ForeignWord(word, group, Equivalent((f"{group}={meant}",), why_nearest(group, value))))
    return found


def _called_elsewhere(word: str, words: Sequence[str]) -> list[ForeignWord]:
    key, equals, value = word.lstrip("+").partition("=")
    if meant := switched(key, value, words):
        return [ForeignWord(word, key, meant)]
    name = name_elsewhere(key) if equals and not is_key_of_training(key) else ""
    return [ForeignWord(word, key, equivalent(name, value, words))] if name else []


def _until_override(words: Sequence[str]) -> list[str]:
    ends = (index for index, word in enumerate(words) if "=" in word or re.match(r"-(?!\d)|~", word))
    stop = next(ends, len(words))
    return [*words[:stop]]
