"""The command line beyond Hydra's own grammar.

Eight things are settled before composing (a composed config is never changed afterwards):
- `budget.steps=20` alone replaces the default budget instead of competing with it;
- `schedule.warmup_steps=100` (or _tokens) alone replaces the option's warmup_fraction, and so for warmdown;
- `callbacks.validation.every_steps=10` alone replaces the option's num_passes;
- under torchrun or SLURM, `trainer.devices` and `trainer.num_nodes` follow the launcher;
- `init_from=FOLDER` of an imported model brings that folder's own options: its model, its tokenizer;
- `init_from=RUN` brings the run's model, tokenizer, optimizer and batch;
- `optimizer=schedule_free task=sft` keeps the optimizer's own schedule rather than the task's;
- `--allow-target my_package.` lets `_target_` name code outside the allow-list; no file can do that.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flags import TAKE_A_WORD, parse_flags
from lmtrain.run.compose.imported_options import imported_options
from lmtrain.run.compose.inherited_options import OPTIMIZER, inherited_options
from lmtrain.run.compose.meant import refuse_foreign_words
from lmtrain.run.compose.paths import MANY_OPTIONS, NAMED_BY_PEOPLE, SHORT_KEYS, conf_folder, key_of

NAME: Final = "run.name"
LIKE_A_NUMBER: Final = re.compile(r"[\d.+-][\w.+-]*|true|false|nan|inf", re.IGNORECASE)  # 1.10 would become 1.1
ALLOW_TARGET: Final = "--allow-target"
ALLOW_TARGET_OPTION: Final[dict[str, Any]] = {
    "action": "append",
    "default": [],
    "metavar": "PREFIX",
    "help": "let the run's config name code of yours, as my_package.",
}
HYDRA_READ = ("hydra.mode", "hydra/sweeper", "hydra.sweeper.params.")
VALIDATION: Final = "callbacks.validation"


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line taken apart: overrides as typed, those `added` by us, Hydra's flags, and the targets allowed.

    `imported` are the options of an imported folder or of a run; typed ones override them.
    """

    overrides: list[str]
    added: list[str] = field(default_factory=list[str])
    imported: list[str] = field(default_factory=list[str])
    flags: list[str] = field(default_factory=list[str])
    allowed_targets: list[str] = field(default_factory=list[str])

    @property
    def words(self) -> list[str]:
        """Return all overrides, later ones overriding earlier ones."""
        return [*self.imported, *self.overrides, *self.added]

    @property
    def hydra(self) -> list[str]:
        """Return the words for Hydra, whose parser wants overrides together."""
        return [*self.words, *self.flags]

    @property
    def config_dir(self) -> str | None:
        """Return the person's own folder of options, as typed."""
        return parse_flags(self.flags).config_dir

    def of_trial(self, words: Sequence[str]) -> "Arguments":
        """Return the arguments of one trial's `words` of a sweep, with the options of its own `init_from`."""
        if not any(key_of(word) == "init_from" for word in words):
            return self
        keys = _keys([*words])
        return replace(self, imported=_brought(keys, self.flags))

    @property
    def not_typed(self) -> frozenset[str]:
        """Return our own overrides."""
        return frozenset((*self.added, *self.imported))


def parse_arguments(
    words: Sequence[str], *, world: tuple[int, int] | None = None, budget_group: bool = True
) -> Arguments:
    """Take a command line apart; `world` is an outer launcher's (processes a node, nodes), None without one.

    `budget_group` is false where `budget` has one key and no options.

    Raises:
        ConfigurationError: A word of other programs, `--allow-target` without a prefix, `trainer.devices` against
            the launcher's, or several options of a single-option group.
    """
    words, allowed = _split_allowed(words)
    refuse_foreign_words(words, flags=TAKE_A_WORD)
    words = [_in_full(word) for word in words]
    # Hydra wants "++" for a key in no file.
    overrides, flags = _split_flags([f"++{word}" if word.startswith(NAMED_BY_PEOPLE) else word for word in words])
    _require_one_option(overrides)
    _require_one_list(overrides)
    keys = _keys(overrides)
    added: list[str] = []
    if budget_group and any(key.startswith("budget.") for key in keys) and "budget" not in keys:
        added.append("budget=none")
    added += [*_ramp_overrides(keys), *_pass_overrides(keys)]
    if world is not None:
        added += _launcher_overrides(keys, *world)
    _refuse_hydra(keys)
    return Arguments(
        overrides=overrides,
        added=added,
        imported=_brought(keys, flags),
        flags=flags,
        allowed_targets=allowed,
    )


def _in_full(word: str) -> str:
    """Return an override under its whole key, where it has a short one; a name like a number keeps its letters."""
    key, equals, value = word.partition("=")
    key = SHORT_KEYS.get(key, key)
    return f"{key}{equals}'{value}'" if key == NAME and LIKE_A_NUMBER.fullmatch(value) else f"{key}{equals}{value}"


def _split_allowed(words: Sequence[str]) -> tuple[list[str], list[str]]:
    hydra: list[str] = []
    allowed: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag != ALLOW_TARGET:
            hydra.append(word)
            continue
        prefix = value if equals else next(remaining, "")
        if not prefix or prefix.startswith("-"):
            msg = f"{ALLOW_TARGET} needs the prefix of a target, such as {ALLOW_TARGET} my_package."
            raise ConfigurationError(msg)
        allowed.append(prefix)
    return hydra, allowed


def _split_flags(words: list[str]) -> tuple[list[str], list[str]]:
    """Part the words into overrides and flags, wherever these stand; a flag with a word keeps it."""
    overrides: list[str] = []
    flags: list[str] = []
    for word in words:
        is_taken = bool(flags) and flags[-1] in TAKE_A_WORD and "=" not in word
        (flags if word.startswith("-") or is_taken else overrides).append(word)
    return overrides, flags


def _require_one_option(overrides: list[str]) -> None:
    """Refuse several options of a single-option group: they would be mixed key by key."""
    for word in overrides:
        key, _, value = word.partition("=")
        if value.startswith("[") and key not in MANY_OPTIONS and (conf_folder() / key).is_dir():
            first = value.strip("[]").partition(",")[0].strip()
            mixes = "mixes devices, and every rank waits for the slowest" if key == "cluster" else f"mixes two of {key}"
            raise ConfigurationError(f"{word} {mixes}: choose one, nearest valid: {key}={first}.")


def _require_one_list(overrides: list[str]) -> None:
    """Refuse a later word of a group of lists that would drop options of an earlier one without a sign."""
    for group in sorted(MANY_OPTIONS):
        typed = [word for word in overrides if key_of(word) == group and "=" in word]
        lists = [_options(word.partition("=")[2]) for word in typed]
        every = [*dict.fromkeys(chain.from_iterable(lists))]
        if len(typed) > 1 and lists[-1] and not {*every} <= {*lists[-1], *_within(group, lists[-1])}:
            whole = _whole_list(group, every)
            raise ConfigurationError(f"{' '.join(typed)}: the last alone would count; all are {whole}.")


def _whole_list(group: str, options: Sequence[str]) -> str:
    """Return the word for all of these; callbacks stand beside the ordinary ones, which end a run at its budget."""
    if group == "callbacks":
        from lmtrain.run.compose.group_options import beside_ordinary  # YAML: where refused alone

        return beside_ordinary(option for option in options if option != "default")
    outer = ",".join(option for option in options if option not in _within(group, options))
    return f"'{group}=[{outer}]'"


def _chosen(keys: Mapping[str, str], flags: Sequence[str]) -> set[str]:
    """Return the groups for which typed options choose, in place of a base's own."""
    if "init_from" not in keys:
        return set()
    from lmtrain.run.compose.chosen_groups import chosen_groups  # of a base alone

    return chosen_groups(keys, own=parse_flags(flags).config_dir)


def _brought(keys: Mapping[str, str], flags: Sequence[str]) -> list[str]:
    """Return the options from `init_from`, and those of a typed optimizer."""
    chosen = _chosen(keys, flags)
    from_start = [*imported_options(keys, chosen=chosen), *inherited_options(keys, chosen=chosen)]
    return [*from_start, *_optimizer_words(keys, flags)]


def _optimizer_words(keys: Mapping[str, str], flags: Sequence[str]) -> list[str]:
    """Return a typed optimizer's choices for other groups, where a task's or an experiment's would come after them."""
    if not {OPTIMIZER} < keys.keys():
        return []
    from lmtrain.run.compose.chosen_groups import optimizer_words  # of a typed optimizer alone

    return optimizer_words(keys, own=parse_flags(flags).config_dir)


def _within(group: str, options: Iterable[str]) -> set[str]:
    """Return the options of the same group inside these, as those of the ordinary callbacks."""
    from lmtrain.run.compose.group_options import file_values  # YAML: for a group typed twice alone

    known = [option for option in options if (conf_folder() / group / f"{option}.yaml").is_file()]
    inner = chain.from_iterable(file_values(f"{group}={option}").get("defaults", []) for option in known)
    return {option for option in inner if isinstance(option, str)}


def _options(value: str) -> list[str]:
    """Return the options of a group's value; none of an empty one, nor of a sweep's."""
    if value == "null" or ("," in value and not value.startswith("[")):
        return []
    return [option.strip() for option in value.strip("[]").split(",") if option.strip()]


def _refuse_hydra(keys: Iterable[str]) -> None:
    """Refuse Hydra's own settings, unread here except a sweep's."""
    for key in keys:
        if key == "hydra.searchpath":
            raise ConfigurationError(f"{key} is set by --config-dir FOLDER, for options of your own; use it instead.")
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(HYDRA_READ):
            read = ", ".join(name.rstrip(".") for name in HYDRA_READ)
            raise ConfigurationError(f"{key} has no effect: a run reads {read} alone of Hydra's own settings.")


def _keys(words: list[str]) -> dict[str, str]:
    return {key_of(word): word.partition("=")[2] for word in words if "=" in word}


def _ramp_overrides(given: dict[str, str]) -> list[str]:
    """Take the fraction back where a length was given in another way."""
    return [
        f"schedule.{ramp}_fraction=null"
        for ramp in ("warmup", "warmdown")
        if any(given.get(f"schedule.{ramp}_{unit}", "null") != "null" for unit in ("steps", "tokens"))
        and f"schedule.{ramp}_fraction" not in given
    ]


def _pass_overrides(given: dict[str, str]) -> list[str]:
    """Take the number of validations back where their interval was given."""
    is_given = given.get(f"{VALIDATION}.every_steps", "null") != "null"
    return [f"{VALIDATION}.num_passes=null"] if is_given and f"{VALIDATION}.num_passes" not in given else []


def _launcher_overrides(given: dict[str, str], num_processes: int, num_nodes: int) -> list[str]:
    added: list[str] = []
    for key, value in (("trainer.devices", num_processes), ("trainer.num_nodes", num_nodes)):
        if key not in given:
            added.append(f"{key}={value}")
        elif given[key] != str(value):
            msg = f"{key}={given[key]} but the launcher started {value}; leave {key} out or set it to {value}."
            raise ConfigurationError(msg)
    return added
