"""The words to type here for a setting of another program."""

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lmtrain.accounting.quantities import parse_whole
from lmtrain.composition.command_line.called_elsewhere import (
    CALLED_CHOICES,
    CALLED_KEYS,
    CALLED_WORDS,
    DATA,
    FOLDERS,
    IN_TOKENS,
    MODELS,
    NO_OPTION,
    NO_SETTING,
    OF_A_DEVICE,
    OF_A_PASS,
    OF_A_STEP,
    PASSES,
    TIKTOKEN,
    TOKENIZERS,
)
from lmtrain.composition.command_line.flags import has_own_folder
from lmtrain.composition.command_line.help import default_options
from lmtrain.composition.command_line.meant_options import amount_meant, option_meant, spelled, why_nearest
from lmtrain.composition.command_line.model_proportions import FEED_FORWARD, WIDTH, feed_forward_at
from lmtrain.composition.command_line.paths import SHORT_KEYS, conf_folder
from lmtrain.errors import ConfigurationError

OUR_KEY: Final = {name: key for key, names in CALLED_KEYS.items() for name in names}
OUR_WORDS: Final = {name: words for words, names in CALLED_WORDS.items() for name in names}
OUR_CHOICE: Final = {name: choice for names, choice in CALLED_CHOICES.items() for name in names}
REASON: Final = {name: reason for reason, names in NO_SETTING.items() for name in names}
PLACES: Final = frozenset((*DATA, *MODELS, *TOKENIZERS, *FOLDERS))
SEQUENCES: Final = frozenset((*OF_A_STEP, *IN_TOKENS, *OF_A_PASS, *OF_A_DEVICE, *PASSES))
NAMES: Final = frozenset((*OUR_KEY, *OUR_WORDS, *OUR_CHOICE, *REASON, *PLACES, *SEQUENCES))
SWITCHES: Final = frozenset(name for name, (_, options) in OUR_CHOICE.items() if "true" in options)  # --NAME is true
# Parts of other programs' configs, none of them a group here but the trainer.
SECTIONS: Final = frozenset(
    {"training", "train", "eval", "lr_scheduler", "optim", "parallelism", "training_args", "trainer", "args", "config"}
    | {"exp_manager"}  # NeMo
)
TRUE: Final = ("true", "yes", "on", "1")
FALSE: Final = ("false", "no", "off", "0", "none", "null")
CONTEXT: Final = "batch.context_tokens"
TOKENS: Final = "batch.tokens_per_step"
MICRO: Final = "batch.micro_batch_sequences"
DEVICES: Final = "trainer.devices"
NO_VALUE: Final = "VALUE"  # of a flag at the end
# Groups whose options are places elsewhere, by a name of such a place.
NAMED_BY: Final = {"source": DATA[0], "data": DATA[0], "model": MODELS[0], "tokenizer": TOKENIZERS[0]}


@dataclass(frozen=True)
class Equivalent:
    """Words, not yet quoted for a shell, and a note; without words there is no such setting, for that reason."""

    words: tuple[str, ...]
    note: str = ""


def name_elsewhere(key: str) -> str:
    """Return a key's name in other programs, "" for no such name; without its section: train.max_steps is max_steps."""
    if key in NAMES:
        return key
    section, _, name = key.rpartition(".")
    part = section.rpartition(".")[2]
    ours = OUR_KEY.get(name, "")
    if name not in NAMES or key in (ours, "trainer.accelerator"):
        return ""
    group = MICRO.rpartition(".")[0] if name in OF_A_PASS else ours.rpartition(".")[0]
    return name if part in SECTIONS or (section and section == group) else ""


def equivalent(name: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the equivalent of a setting by its `name_elsewhere`, beside the other words of its command."""
    if name in REASON:
        return Equivalent((), REASON[name])
    if name in SEQUENCES:
        return _in_sequences(name, {**_values(words), name: value})
    if name in PLACES:
        return _place(name, value)
    if name in OUR_CHOICE:
        return _choice(name, value, words)
    if name in OUR_WORDS:
        return Equivalent(tuple(word.format(value) for word in OUR_WORDS[name]))
    if OUR_KEY[name] == WIDTH:
        return Equivalent((f"{WIDTH}={value}", *_feed_forward(value, _values(words))))
    return Equivalent((f"{OUR_KEY[name]}={value}",))


def _feed_forward(width: str, typed: Mapping[str, str]) -> list[str]:
    """Return the word for a feed-forward in the model's proportion, none where one is typed."""
    is_typed = any(OUR_KEY.get(name, name) == FEED_FORWARD for name in typed)
    if is_typed or not width.isdigit():
        return []
    option = typed.get("model") or default_options(conf_folder() / "train.yaml")["model"]
    found = feed_forward_at(option, int(width))
    return [f"{FEED_FORWARD}={found}"] if found else []


def _choice(name: str, value: str, words: Sequence[str]) -> Equivalent:
    (*before, group), options = OUR_CHOICE[name]
    word = value.lower()
    switched = "true" if word in TRUE else "false" if word in FALSE else word
    option = options.get(word, options.get(switched)) or option_meant(group, value, _options(group))
    if option is None and "" not in options and value != NO_VALUE:
        told = chosen(group, value, words)
        return replace(told, words=(*before, f"{group}=OPTION") if told.words else ())
    typed = (*before, f"{group}={(option or options.get('', 'OPTION')).format(value)}")
    return Equivalent(typed, why_nearest(group, value) if option else "")


def chosen(group: str, value: str, words: Sequence[str]) -> Equivalent:
    """Return the words for --GROUP VALUE: its option, or its place; of another key the value as it is."""
    known = _options(group, own=_values(words).get("config_dir") or _values(words).get("cd"))
    if key_told := _no_key(group, value, words):
        return key_told
    if not known or value in (*known, NO_VALUE, "null") or re.search(r"[\[,]", value):
        return Equivalent((f"{group}={value}",))
    if reason := NO_OPTION.get(group, {}).get(spelled(value)):
        return Equivalent((), reason)
    if group in NAMED_BY and "/" in value:
        return _place(NAMED_BY[group], value)
    if meant := option_meant(group, value, known):
        return Equivalent((f"{group}={meant}",), why_nearest(group, value))
    if amount := amount_meant(group, value):
        return Equivalent((amount,))
    if group in NAMED_BY and (Path(value).exists() or NAMED_BY[group] in TOKENIZERS):
        return _place(NAMED_BY[group], value)
    from lmtrain.composition.command_line.unknown_words import unknown_option  # OmegaConf: only to refuse

    return Equivalent((f"{group}=OPTION",), unknown_option(group, value, known).rstrip("."))


def _no_key(key: str, value: str, words: Sequence[str]) -> Equivalent | None:
    """Return the answer to a GROUP.NAME that no option of the group takes, None for another key."""
    group, dot, name = key.partition(".")
    if not dot or "." in name or key in SHORT_KEYS or not _options(group) or has_own_folder(words):
        return None
    from lmtrain.composition.command_line import group_options, unknown_words  # OmegaConf: only to refuse

    conf = conf_folder()
    if unknown_words.options_with(key, conf=conf) or unknown_words.options_that_take(key, conf=conf):
        return None
    option = _values(words).get(group, "")
    option = option if option in _options(group) else default_options(conf / "train.yaml").get(group, "")
    keys = group_options.file_values(f"{group}={option}") if option in _options(group) else {}
    of_group = {name: held for name, held in keys.get(group, keys).items() if name != "defaults"}
    config = {group: {"_target_": "", **of_group}}
    told = unknown_words.unknown_key(key, typed=f"{key}={value}", config=config, conf=conf)
    return Equivalent((f"{group}.KEY={value}",), told.rstrip("."))


def _options(group: str, *, own: str | None = None) -> set[str]:
    """Return the options of a group, with those of a person's own folder."""
    folders = (conf_folder(), *([Path(own)] if own else []))
    return {file.stem for folder in folders for file in folder.glob(f"{group}/*.yaml")}


def _place(name: str, value: str) -> Equivalent:
    """Return the words for a text, weights, a tokenizer or a folder, by what is at that place."""
    is_here = Path(value).exists()
    if name in FOLDERS:
        parent, _, last = value.rstrip("/").rpartition("/")
        return Equivalent((*([f"run.root={parent}"] if parent else []), f"run.name={last or 'NAME'}"))
    if name in TOKENIZERS:
        option, key = ("folder", "path") if is_here else ("huggingface", "name")
        return Equivalent(
            (f"tokenizer={option}", f"tokenizer.{key}={value if is_here else TIKTOKEN.get(value, value)}")
        )
    if name in MODELS:
        if _is_option("model", value):
            return Equivalent((f"model={value}",))
        return Equivalent(("init_from=OUT",), f"after `lmtrain import hf {quoted(value) if is_here else 'FOLDER'} OUT`")
    if _is_option("source", value):
        return Equivalent((f"source={value}",))
    if not is_here and re.fullmatch(r"[\w.-]+/[\w-]+", value):
        return Equivalent(("source=hf_dataset", f"source.name={value}"))
    return Equivalent(("source=files", f"source.paths=[{value}]"))


def _is_option(group: str, word: str) -> bool:
    return re.fullmatch(r"\w+", word) is not None and (conf_folder() / group / f"{word}.yaml").is_file()


def _in_sequences(name: str, typed: Mapping[str, str]) -> Equivalent:
    """Return a batch's size in tokens: other programs count sequences, of a step, of a pass or of a device."""
    context = _count(typed, (CONTEXT, *CALLED_KEYS[CONTEXT])) or _default(CONTEXT)
    devices, passes = _count(typed, (DEVICES, *CALLED_KEYS[DEVICES])) or 1, _count(typed, PASSES)
    of_a_device, of_a_step = _count(typed, OF_A_DEVICE), _count(typed, OF_A_STEP)
    of_a_pass = of_a_device or _count(typed, OF_A_PASS) or (of_a_step if passes and "batch_size" in typed else None)
    if not typed[name].isdigit() or int(typed[name]) < 1:
        return Equivalent((f"{TOKENS}=TOKENS",), f"sequences times {CONTEXT}")
    if (tokens := _count(typed, IN_TOKENS)) and (name in IN_TOKENS or name in (*OF_A_PASS, *OF_A_DEVICE)):
        micro = [f"{MICRO}={of_a_pass}"] if of_a_pass else []
        return Equivalent((f"{TOKENS}={tokens}", *micro), f"{IN_TOKENS[0]} counts tokens")
    if of_a_pass and (passes or of_a_device):
        parts = [f"{of_a_pass} sequences", *([f"{passes} passes"] if passes else [])]
        parts += [*([f"{devices} devices"] if devices > 1 else []), f"{context} tokens"]
        tokens = of_a_pass * (passes or 1) * devices * context
        return Equivalent((f"{TOKENS}={tokens}", f"{MICRO}={of_a_pass}"), " x ".join(parts))
    if name in OF_A_PASS:
        return Equivalent((f"{MICRO}={of_a_pass}",), "of one pass of one device")
    if name in OF_A_STEP:
        return Equivalent(
            (f"{TOKENS}={int(typed[name]) * context}",), f"{typed[name]} sequences of {CONTEXT}={context}"
        )
    return _passes(typed, passes or 1, context=context, devices=devices, sequences=of_a_step)


def _passes(typed: Mapping[str, str], passes: int, *, context: int, devices: int, sequences: int | None) -> Equivalent:
    """Return the size of one pass for so many passes of a step."""
    whole = sequences or (_count(typed, (TOKENS,)) or _default(TOKENS)) // context
    of_a_pass = whole // devices // passes
    if of_a_pass * devices * passes != whole:
        return Equivalent((f"{MICRO}=SEQUENCES",), f"those of a step, {whole} here, over {passes * devices} passes")
    size = [f"{TOKENS}={whole * context}"] if sequences else []
    of_old = "" if sequences else "; the step's batch stays as it is"
    return Equivalent((*size, f"{MICRO}={of_a_pass}"), f"{passes} passes make a step's {whole} sequences{of_old}")


def _count(typed: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        with contextlib.suppress(ConfigurationError):
            return parse_whole(typed.get(name, ""), name)
    return None


def _default(key: str) -> int:
    """Return a number of the entry config by the last word of its key."""
    entry = (conf_folder() / "train.yaml").read_text()
    found = re.search(rf"^  {key.rpartition('.')[2]}: (\d+)", entry, flags=re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def _values(words: Sequence[str]) -> dict[str, str]:
    """Return the values of KEY=VALUE, --KEY=VALUE and --KEY VALUE by their names."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        key, equals, value = word.lstrip("+-").partition("=")
        if equals or word.startswith("--"):
            name = key.replace("-", "_")
            found[name_elsewhere(name) or name] = value if equals else following
    return found


def quoted(value: str) -> str:
    """Return a value as a shell takes it."""
    return value if re.fullmatch(r"[^\s'\"\[\]{}$*?!&|;<>()]*", value) else shlex.quote(value)
