"""Names of settings and options in other programs.

Those of transformers, TRL, accelerate, axolotl, LLaMA-Factory, nanoGPT, nanochat, torchtitan, litgpt, OLMo-core, NeMo,
Megatron-LM and Lightning, as their own examples type them. Settings are a table, settings.json, with an
answer before the names that it answers:
- `words`: the words here, with {} for the value; a word after ? is left out where its key is typed or answered
  already, and a note comes after #;
- `choices`: a group and an answer a value; "true" and "false" are switches, "" is any other value, and an option of
  the group, its name elsewhere and its spellings need none; an answer of a reason begins with !;
- `reasons`: no setting here, and why;
- `special`: kinds of settings whose answer takes arithmetic, or a look at this machine's files;
- `values`: by a key of ours, its values elsewhere, with an answer as in `choices`;
- `together`: two words, and the one in their place.
"""

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from lmtrain.run.compose.paths import NAMED_BY_PEOPLE, conf_folder, group_folders, is_key_of_training
from lmtrain.storage import foreign_json

TABLE: Final = Path(__file__).with_name("settings.json")
REASON: Final = "!"
IMPLIED: Final = "?"
NOTE: Final = " # "
# Parts of other programs' configs, where a name of one word is a setting; elsewhere it may be anything.
SECTIONS: Final = frozenset(
    {"training", "train", "eval", "lr_scheduler", "scheduler", "sched", "optim", "init_args", "parallelism", "trainer"}
    | {"training_args", "args", "config", "exp_manager", "train_module", "data_loader", "checkpoint", "checkpointer"}
    | {"metrics", "validation", "profiling", "log", "job", "model_config", "model_args", "overrides"}
)


@dataclass(frozen=True)
class ChoiceElsewhere:
    """A group here, or a key, and the answers by value."""

    group: str
    answers: Mapping[str, str]


@dataclass(frozen=True)
class SettingsElsewhere:
    """Answers by a setting's name elsewhere; of `special` ones the kind. `names` has all of a kind or an answer.

    `columns` have the key of a text's column by task, where it is not the usual one.
    """

    words: Mapping[str, str]
    choices: Mapping[str, ChoiceElsewhere]
    reasons: Mapping[str, str]
    special: Mapping[str, str]
    values: Mapping[str, Mapping[str, str]]
    together: Mapping[frozenset[str], str]
    columns: Mapping[str, str]
    names: Mapping[str, tuple[str, ...]]

    def __contains__(self, name: object) -> bool:
        return any(name in part for part in (self.words, self.choices, self.reasons, self.special))


@cache
def settings_elsewhere() -> SettingsElsewhere:
    """Read the table."""
    table: dict[str, Any] = foreign_json.read(TABLE)
    parts: dict[str, Mapping[str, str]] = {key: table[key] for key in ("words", "reasons", "special")}
    by_name = {
        key: {name: answer for answer, names in part.items() for name in names.split()} for key, part in parts.items()
    }
    choices = [(each["names"].split(), ChoiceElsewhere(each["group"], each["values"])) for each in table["choices"]]
    return SettingsElsewhere(
        **by_name,
        values={
            key: {name: answer for names, answer in by_value.items() for name in names.split()}
            for key, by_value in table["values"].items()
        },
        together={frozenset(words.split()): word for words, word in table["together"].items()},
        columns=table["columns"],
        choices={name: choice for names, choice in choices for name in names},
        names={answer: tuple(names.split()) for part in parts.values() for answer, names in part.items()},
    )


@dataclass(frozen=True)
class Equivalent:
    """Words, not yet quoted for a shell, and a note; `implied` are needed beside them where nobody types their keys.

    Without words there is no such setting, for that reason: its word `is_needless`, or a mistake.
    """

    words: tuple[str, ...]
    note: str = ""
    implied: tuple[str, ...] = ()
    is_needless: bool = False


def needless(reason: str) -> Equivalent:
    """Return the answer to a setting of no use here."""
    return Equivalent((), reason, is_needless=True)


def name_elsewhere(key: str) -> str:
    """Return a key's name in other programs, "" for no such name; without its sections where it is known by itself."""
    key = key.lower()
    table = settings_elsewhere()
    if key in table:
        return key
    head, *parts = key.split(".")
    if not parts or head == "hydra" or key.startswith(NAMED_BY_PEOPLE):
        return ""
    names = (".".join(parts[start:]) for start in range(len(parts)))
    name = next((name for name in names if name in table), "")
    if not name or (is_key_of_training(head) and _is_setting_of(head, parts)) or _is_mistyped(head, parts):
        return ""
    section = key.removesuffix(f".{name}").rpartition(".")[2]
    is_telling = "_" in name or "." in name or section in SECTIONS or name not in table.words
    return name if is_telling or table.words[name].startswith((f"{head}.", f"{head}=")) else ""


def _is_mistyped(head: str, path: Sequence[str]) -> bool:
    """Tell whether a key's first word is a group's with another letter, which has such a setting."""
    groups = [folder.name for folder in group_folders()]
    near = [] if head in (*SECTIONS, *groups) else difflib.get_close_matches(head, groups, n=1, cutoff=0.8)
    return bool(near) and _is_setting_of(near[0], path)


def _is_setting_of(group: str, path: Sequence[str]) -> bool:
    """Tell whether an option of a group, or a node of the entry config, has such a setting."""
    files = [*(conf_folder() / group).glob("*.yaml")] or [conf_folder() / "train.yaml"]
    text = "\n".join(file.read_text() for file in files)
    return all(re.search(rf"^[\s#]*{re.escape(part)}:", text, re.MULTILINE) for part in path[-2:])


def filled(answer: str, value: str) -> Equivalent:
    """Return an answer of the table for a value."""
    if answer.startswith(REASON):
        return needless(answer.removeprefix(REASON))
    typed, _, note = answer.partition(NOTE)
    if "_steps={}" in typed:
        value = re.sub(r"^(\d+)ba$", r"\1", value)  # of Composer: batches
    words = [word.replace("{}", value) for word in typed.split(" ")]
    return Equivalent(
        tuple(word for word in words if not word.startswith(IMPLIED)),
        note,
        tuple(word.removeprefix(IMPLIED) for word in words if word.startswith(IMPLIED)),
    )


def options_of(group: str, *, own: str | None = None) -> set[str]:
    """Return the options of a group, with those of a person's own folder."""
    folders = (conf_folder(), *([Path(own)] if own else []))
    return {file.stem for folder in folders for file in folder.glob(f"{group}/*.yaml")}


def values_of(words: Sequence[str]) -> Mapping[str, str]:
    """Return the values of KEY=VALUE, --KEY=VALUE and --KEY VALUE by their names."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        key, equals, value = word.lstrip("+-").partition("=")
        if equals or word.startswith("--"):
            name = key.replace("-", "_")
            found[name_elsewhere(name) or name] = value if equals else following
    return found


def quoted(value: str) -> str:
    """Return a value as a shell takes it."""
    return value if re.fullmatch(r"[^\s'\"\[\]{}$*?!&|;<>()]*", value) else shlex.quote(value)


# Their entries, where they are known without a download.
VOCAB_SIZES: Final[Mapping[str, int]] = {"gpt2": 50257}
# Data sets of the hub by what programs call them.
DATA_SETS: Final[Mapping[str, str]] = {
    "c4": "allenai/c4",
    "openwebtext": "Skylion007/openwebtext",
    "tinystories": "roneneldan/TinyStories",
    "fineweb": "HuggingFaceFW/fineweb",
    "slimpajama": "cerebras/SlimPajama-627B",
}
# LoRA's layers here by their names elsewhere.
LAYERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "c_attn", "query_key_value", "qkv_proj", "attention_qkv"), "qkv"),
    **dict.fromkeys(("o_proj", "out_proj", "attention_dense"), "output"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "c_fc", "mlp_fc1"), "up"),
    **dict.fromkeys(("down_proj", "c_proj", "mlp_fc2"), "down"),
}
