"""The intended command, where a word belongs to other programs: found in the words alone, before Hydra.

The first words of a new user are `lr=1e-3`, `--epochs 3` or `batch_size=32`: each has a key here, under another name.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from lmtrain.composition.command_line.paths import conf_folder, is_key_of_training
from lmtrain.errors import ConfigurationError

CALLED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "optimizer.lr": ("lr", "learning_rate", "optimizer.learning_rate"),
    "optimizer.weight_decay": ("weight_decay", "wd"),
    "budget.epochs": ("epochs", "epoch", "num_epochs", "max_epochs", "num_train_epochs", "trainer.max_epochs"),
    "budget.steps": ("steps", "max_steps", "num_steps", "iterations", "max_iters", "trainer.max_steps"),
    "budget.tokens": ("tokens", "max_tokens", "num_tokens"),
    "batch.context_tokens": ("context_length", "seq_len", "seq_length", "sequence_length", "block_size", "max_length"),
    "gradient_clip_norm": ("grad_clip", "gradient_clip_val", "max_grad_norm", "trainer.gradient_clip_val"),
    "schedule.warmup_steps": ("warmup_steps", "num_warmup_steps", "warmup_iters"),
    "trainer.devices": ("devices", "gpus", "num_gpus"),
    "run.name": ("name", "run_name"),
    "model.num_layers": ("num_layers", "n_layer", "n_layers"),
    "model.num_heads": ("num_heads", "n_head", "n_heads"),
    "model.width": ("hidden_size", "n_embd", "d_model"),
}
OUR_KEY: Final = {name: key for key, names in CALLED_KEYS.items() for name in names}
FLAGS_OF_HYDRA: Final = ("run", "hydra")  # refused with a replacement elsewhere
IN_SEQUENCES: Final = ("batch_size", "train_batch_size", "global_batch_size", "per_device_train_batch_size")
AMOUNT: Final = re.compile(r"[\d.]+")
UNIT: Final = re.compile(r"[A-Za-z]{1,4}")
NO_SPACE: Final = "no space belongs around ="


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
    for index, word in enumerate(words):
        previous, following = (words[index - 1] if index else ""), words[index + 1 : index + 2]
        if word.startswith("--"):
            _refuse_dashes(word, following, known=flags)
        if word.startswith("-") or ((previous in flags or previous.startswith("--")) and "=" not in word):
            continue
        _refuse_spaces(words, index, last)
        _refuse_called(word, words)
        last = word


def _refuse_dashes(word: str, following: Sequence[str], *, known: frozenset[str]) -> None:
    """Refuse `--lr 1e-3` and `--optimizer.lr=1e-3`; a flag of ours, or an unknown one, is for its parser."""
    name, equals, value = word[2:].partition("=")
    key = name.replace("-", "_")
    is_ours = key not in FLAGS_OF_HYDRA and is_key_of_training(key)
    if f"--{name}" in known or not (is_ours or key in OUR_KEY or key in IN_SEQUENCES or "." in key):
        return
    takes_next = not equals and following and "=" not in following[0] and not following[0].startswith("-")
    value = value if equals else following[0] if takes_next else "VALUE"
    typed = f"{word} {value}" if takes_next else word
    raise MeantWord(typed, "a key has no dashes", _ours(key, value, []))


def _refuse_spaces(words: Sequence[str], index: int, last: str) -> None:
    """Refuse a word without `=`: most often the rest of a word cut by the shell at a space."""
    word, following = words[index], words[index + 1 : index + 2]
    if word.endswith("=") and not word.startswith("=") and following and "=" not in following[0]:
        raise MeantWord(f"{word} {following[0]}", NO_SPACE, f"{word}{_quoted(following[0])}")
    if "=" in word or word.startswith("~"):
        return
    if following and following[0].startswith("="):
        value = following[0][1:] or "".join(words[index + 2 : index + 3])
        typed = " ".join(words[index : index + (2 if following[0][1:] else 3)])
        raise MeantWord(typed, NO_SPACE, f"{word}={_quoted(value)}")
    if following and is_key_of_training(word):
        _refuse_apart(word, following[0])
    if following and _is_key(word) and "=" not in following[0] and not following[0].startswith("-"):
        raise MeantWord(f"{word} {following[0]}", "a key and its value are one word", f"{word}={_quoted(following[0])}")
    key, equals, value = last.partition("=")
    rest = " ".join([word, *_until_override(words[index + 1 :])])
    if equals and last == words[index - 1]:
        raise MeantWord(f"{last} {rest}", "a space ends a value", _joined(key, value, rest))
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


def _refuse_called(word: str, words: Sequence[str]) -> None:
    key, equals, value = word.lstrip("+").partition("=")
    if equals and (key in OUR_KEY or key in IN_SEQUENCES):
        raise MeantWord(word, f"there is no key {key}", _ours(key, value, words))


def _ours(key: str, value: str, words: Sequence[str]) -> str:
    """Return the equivalent override here; other programs count a batch in sequences."""
    if key not in IN_SEQUENCES:
        return f"{OUR_KEY.get(key, key)}={_quoted(value)}"
    context = _context_tokens(words)
    if not value.isdigit() or context is None:
        return "batch.tokens_per_step=TOKENS, which is sequences times batch.context_tokens"
    return f"batch.tokens_per_step={int(value) * context} ({value} sequences of batch.context_tokens={context})"


def _context_tokens(words: Sequence[str]) -> int | None:
    """Return the typed context, else the entry config's; None where it is no plain number."""
    typed = [word.partition("=")[2] for word in words if word.startswith("batch.context_tokens=")]
    default = re.search(r"^  context_tokens: (\d+)", (conf_folder() / "train.yaml").read_text(), flags=re.MULTILINE)
    found = typed[-1] if typed else default.group(1) if default else ""
    return int(found) if found.isdigit() else None


def _until_override(words: Sequence[str]) -> list[str]:
    stop = next((index for index, word in enumerate(words) if "=" in word or word.startswith(("-", "~"))), len(words))
    return [*words[:stop]]


def _joined(key: str, value: str, rest: str) -> str:
    if AMOUNT.fullmatch(value) and UNIT.fullmatch(rest):
        return f"{key}={value}{rest}"
    if key == "run.name":
        return f"{key}={'_'.join([value, *rest.split()])}"
    return shlex.quote(f"{key}={value} {rest}")


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[^\s'\"\[\]{}$*?!&|;<>()]*", value) else shlex.quote(value)
