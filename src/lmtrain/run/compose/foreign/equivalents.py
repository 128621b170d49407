"""The words to type here for a setting of another program."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lmtrain.run.compose.flags import has_own_folder
from lmtrain.run.compose.foreign.table import (
    Equivalent,
    filled,
    needless,
    options_of,
    quoted,
    settings_elsewhere,
    values_of,
)
from lmtrain.run.compose.help import default_options
from lmtrain.run.compose.meant_options import (
    CALLED_OPTIONS,
    NO_OPTION,
    amount_meant,
    option_meant,
    spelled,
    why_nearest,
)
from lmtrain.run.compose.paths import SHORT_KEYS, conf_folder, is_text_file, key_of

TRUE: Final = ("true", "yes", "on", "1")
FALSE: Final = ("false", "no", "off", "0", "none", "null")
NO_VALUE: Final = "VALUE"  # of a flag at the end
UNSET: Final = "-1"  # of nanochat, transformers and torchtitan
# Keys of one answer: two of them are refused.
ONE_QUESTION: Final = ("schedule.warmup_", "schedule.warmdown_")
BASE: Final = "init_from=runs/base"
OF_A_BASE: Final = f"{BASE}: the model to start from, made by `lmtrain import hf FOLDER runs/base`"
# Keys of a share of a run, by the answer in steps, and whether they count passes.
OF_SHARES: Final = {
    "schedule.warmup_steps={}": ("schedule.warmup_fraction", False),
    "callbacks.validation.every_steps={}": ("callbacks.validation.num_passes", True),
}
# Groups whose options are places elsewhere, by a name of such a place.
NAMED_BY: Final = {"source": "dataset", "data": "dataset", "model": "model_name_or_path", "tokenizer": "tokenizer_name"}


def is_switch(name: str) -> bool:
    """Tell whether a setting elsewhere, or a group here, is on without a value, as --bf16 and --packing."""
    table = settings_elsewhere()
    choice = table.choices.get(name)
    return "true" in table.values.get(name, {}) or "true" in (
        choice.answers if choice else CALLED_OPTIONS.get(name, {})
    )


def switched(key: str, value: str, words: Sequence[str]) -> Equivalent | None:
    """Return the answer to another program's value of a key of ours, None for a value that may be its own."""
    answers = settings_elsewhere().values.get(key)
    answer = answers.get(value.lower()) if answers else None
    return None if answer is None or has_own_folder(words) or Path(value).exists() else filled(answer, value)


def equivalent(name: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the equivalent of a setting by its `name_elsewhere`, beside the other words of its command."""
    table = settings_elsewhere()
    if value == UNSET and name not in table.choices:
        return needless("it leaves the number to the program, as no word does here")
    if key := _key_of_the_task(name, words):
        return Equivalent((f"{key}={value}",))
    if name in table.reasons:
        return needless(table.reasons[name])
    if name in table.special:
        from lmtrain.run.compose.foreign.conversions import special_equivalent  # only to refuse

        return special_equivalent(table.special[name], name, value, words)
    if name in table.choices:
        return _choice(name, value, words)
    return _of_a_share(table.words[name], value) or filled(table.words[name], value)


def _key_of_the_task(name: str, words: Sequence[str]) -> str | None:
    """Return the key of the typed task's objective with such a name; `beta` and `epsilon` are also others'."""
    task = values_of(words).get("task", "")
    if task not in options_of("objective"):
        return None
    from lmtrain.run.compose.group_options import file_values  # only to refuse

    return f"objective.{name}" if name in file_values(f"objective={task}") else None


def _of_a_share(answer: str, value: str) -> Equivalent | None:
    """Return the answer to a share of a run where the key here is of steps, None for a number of steps."""
    if "_steps={}" not in answer or not re.fullmatch(r"0?\.\d*[1-9]\d*", value):
        return None
    if answer in OF_SHARES:
        key, is_count = OF_SHARES[answer]
        return Equivalent((f"{key}={round(1 / float(value)) if is_count else value}",), "a share of the run")
    return needless("a share of a run has no setting here: type a number of steps")


def meant_by_one_value(part: str, value: str) -> str:
    """Return the words for one value in the place of a part with several keys, as run=notes."""
    return " ".join(map(quoted, equivalent(part, value, []).words))


def _choice(name: str, value: str, words: Sequence[str]) -> Equivalent:
    choice = settings_elsewhere().choices[name]
    word = spelled(value)
    switched = "true" if value.lower() in TRUE else "false" if value.lower() in FALSE else word
    answers = {**settings_elsewhere().values.get(choice.group, {}), **choice.answers}
    for each in (value.lower(), word, switched, value.lower().partition(":")[0]):
        if each in answers:
            return filled(answers[each], value)
    option = option_meant(choice.group, value, options_of(choice.group))
    if option is not None:
        return Equivalent((f"{choice.group}={option}",), why_nearest(choice.group, value))
    if "" in choice.answers and value != NO_VALUE:
        return filled(choice.answers[""], value)
    return chosen(choice.group, value, words)


def chosen(group: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the words for --GROUP VALUE: its option, or its place; of another key the value as it is."""
    known = options_of(group, own=values_of(words).get("config_dir") or values_of(words).get("cd"))
    if key_told := _no_key(group, value, words):
        return key_told
    if not known or value in (*known, "null") or re.search(r"[\[,]", value):
        from lmtrain.run.compose.group_options import refused_value  # OmegaConf: only to refuse

        refusal = "" if known or value == NO_VALUE else refused_value(group, value)
        return Equivalent((), refusal) if refusal else Equivalent((f"{group}={value}",))
    if reason := NO_OPTION.get(group, {}).get(spelled(value)):
        return needless(reason)
    from lmtrain.run.compose.foreign.conversions import place_of  # only to refuse

    if group in NAMED_BY and "/" in value:
        return place_of(NAMED_BY[group], value, words)
    if meant := option_meant(group, value, known):
        return Equivalent((f"{group}={meant}",), why_nearest(group, value))
    if amount := amount_meant(group, value):
        return Equivalent((amount,))
    if group in NAMED_BY and (Path(value).exists() or group == "tokenizer" or _is_text(group, value)):
        return place_of(NAMED_BY[group], value, words)
    from lmtrain.run.compose.unknown_words import unknown_option  # OmegaConf: only to refuse

    return Equivalent((), unknown_option(group, value, known).rstrip("."))


def _is_text(group: str, value: str) -> bool:
    return group == "data" and is_text_file(value)


def _no_key(key: str, value: str, words: Sequence[str]) -> Equivalent | None:
    """Return the answer to a GROUP.NAME that no option of the group takes, None for another key."""
    group, dot, name = key.partition(".")
    if not dot or "." in name or key in SHORT_KEYS or not options_of(group) or has_own_folder(words):
        return None
    from lmtrain.run.compose import group_options, unknown_words  # OmegaConf: only to refuse

    conf = conf_folder()
    if unknown_words.options_with(key, conf=conf) or unknown_words.options_that_take(key, conf=conf):
        return None
    option = values_of(words).get(group, "")
    option = option if option in options_of(group) else default_options(conf / "train.yaml").get(group, "")
    keys = group_options.file_values(f"{group}={option}") if option in options_of(group) else {}
    of_group = {name: held for name, held in keys.get(group, keys).items() if name != "defaults"}
    config = {group: {"_target_": "", **of_group}}
    told = unknown_words.unknown_key(key, typed=f"{key}={value}", config=config, conf=conf)
    return Equivalent((), told.rstrip("."))


@dataclass(frozen=True)
class Together:
    """The words of several answers as one command, and a line about each that nobody asked for.

    `instead` has the words left out, each with the one in its place.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    instead: Mapping[str, str] = field(default_factory=dict[str, str])


def answered_together(answers: Sequence[Equivalent], own: Sequence[str]) -> Together:
    """Return the words of all answers, each key once, and those implied that the `own` words of a command lack."""
    found: dict[str, str] = {}
    instead: dict[str, str] = {}
    implied: list[str] = []
    for each in answers:
        left_out: set[str] = set()  # groups of another option than this answer's
        for word in each.words:
            group, dot, _ = key_of(word).partition(".")
            question = next((start for start in ONE_QUESTION if word.startswith(start)), key_of(word))
            first = found.get(question) or _at_odds(word, found.values())
            kept = _both(first, word) if first else word
            if kept == first != word:
                instead[word] = kept
                left_out |= {group} if not dot else set()
            elif not (dot and group in left_out):
                found[question] = kept
        implied += () if left_out else each.implied
    typed = {key_of(word) for word in own if "=" in word}
    implied = [word for word in implied if key_of(word) not in {*typed, *found}]
    lacking = [word for word in found.values() if word not in own] or [*found.values()]
    words = (*lacking, *{key_of(word): word for word in implied}.values())
    return Together(words, (OF_A_BASE,) if BASE in implied else (), instead)


def _at_odds(word: str, found: Iterable[str]) -> str | None:
    """Return a word found that takes a key's node away, or sets one below a node taken away by this word."""
    for each in found:
        away, kept = (word, each) if word.startswith("~") else (each, word)
        if away.startswith("~") and key_of(kept).startswith(f"{key_of(away)}."):
            return each
    return None


def _both(first: str, word: str) -> str:
    """Return one word for two of a key: lists of options together, else the first."""
    if one := settings_elsewhere().together.get(frozenset((first, word))):
        return one
    lists = [each.partition("=[default,")[2].removesuffix("]") for each in (first, word)]
    options = dict.fromkeys(",".join(lists).split(","))
    return f"{key_of(word)}=[default,{','.join(options)}]" if all(lists) else first
