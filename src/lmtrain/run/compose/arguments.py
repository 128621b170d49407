"""The command line, taken apart before Hydra composes a config.

Besides Hydra's own grammar:
- `budget.steps=20` alone replaces the default budget instead of competing with it;
- `schedule.warmup_steps=100` (or _tokens) alone replaces the option's warmup_fraction, and so for warmdown;
- `callbacks.validation.every_steps=10` alone replaces the option's num_passes;
- under torchrun or SLURM, `trainer.devices` and `trainer.num_nodes` follow the launcher;
- `init_from=FOLDER` or `init_from=RUN` brings the options of that model or run (start_options.py);
- `--allow-target my_package.` lets `_target_` name code outside the allow-list; no file can do that.

Hydra's own entry point is not used: it instantiates the nodes under `hydra` in any file, past every allow-list.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import MANY_OPTIONS, NAMED_BY_PEOPLE, SHORT_KEYS, conf_folder, key_of
from lmtrain.run.compose.start_options import brought_options
from lmtrain.run.compose.suggestions import refuse_unknown_words

NAME: Final = "run.name"
LIKE_A_NUMBER: Final = re.compile(r"[\d.+-][\w.+-]*|true|false|nan|inf", re.IGNORECASE)  # 1.10 would become 1.1
VALIDATION: Final = "callbacks.validation"
HYDRA_READ: Final = ("hydra.mode", "hydra/sweeper", "hydra.sweeper.params.")
OWN_FOLDER: Final = ("--config-dir", "-cd")  # its options may have any key
MULTIRUN: Final = frozenset({"-m", "--multirun"})
ALLOW_TARGET: Final = "--allow-target"
ALLOW_TARGET_OPTION: Final[dict[str, Any]] = {
    "action": "append",
    "default": [],
    "metavar": "PREFIX",
    "help": "let the run's config name code of yours, as my_package.",
}
# Flags of Hydra that are not offered, with what does their work here.
INSTEAD: Final = {
    "--info": "--cfg job --resolve prints the composed config",
    "--experimental-rerun": "the same command again resumes its run",
    "--config-path": "--config-dir FOLDER adds options of your own",
    "--config-name": "--config-dir FOLDER adds options of your own, as experiment=NAME",
    "--run": "leave it out",
    "--version": "lmtrain --version prints it",
    "--shell-completion": "lmtrain completion bash prints a script for the shell",
}
# Every flag, with whether it takes the next word.
FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("-m", "--multirun", "--resolve", "--json", "--help", "-h", "-r", "--run", "--version"), False),
    **dict.fromkeys(("--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--info", "-i", ALLOW_TARGET), True),
    **dict.fromkeys(("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun"), True),
    **dict.fromkeys(("--shell-completion", "-sc"), True),
}


@dataclass(frozen=True)
class Flags:
    """The flags of one command line; `show` is the part of the config to print instead of running."""

    is_sweep: bool = False
    show: str | None = None
    package: str | None = None
    resolve: bool = False
    config_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line taken apart: overrides as typed, those `added` here, Hydra's flags, and the targets allowed.

    `imported` are the options that `init_from` brings; typed ones override them.
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

    @property
    def not_typed(self) -> frozenset[str]:
        """Return the overrides that nobody typed."""
        return frozenset((*self.added, *self.imported))

    def of_trial(self, words: Sequence[str]) -> "Arguments":
        """Return the arguments of one trial's `words` of a sweep, with the options of its `init_from`."""
        if not any(key_of(word) == "init_from" for word in words):
            return self
        return replace(self, imported=brought_options(values_by_key(words), own=self.config_dir))


class Choices:
    """What Hydra reports of one composed config: its overrides, the chosen options, and its place in a sweep.

    `brought` are a trial's overrides from its `init_from`, `swept` the words that not all trials of its sweep have.
    """

    def __init__(self, state: Any, *, trial: Arguments | None = None) -> None:
        """Read the `hydra` node of a composed config."""
        self.overrides: list[str] = list(state.overrides.task)
        self.options: dict[str, str] = {name: str(option) for name, option in state.runtime.choices.items()}
        self.is_trial, self.brought = trial is not None, trial.imported if trial else []
        self.swept: list[str] = []

    @property
    def title(self) -> str:
        """Return the model and the trial's words."""
        model = self.options["model"]
        return ", ".join([model, *(word for word in self.swept if word != f"model={model}")])


def told_apart(trials: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return each trial's words without those that all of them have."""
    shared = set[str]().union(*trials[:1]).intersection(*trials)
    return [[word for word in trial if word not in shared] for trial in trials]


def parse_arguments(
    words: Sequence[str], *, world: tuple[int, int] | None = None, budget_group: bool = True
) -> Arguments:
    """Take a command line apart; `world` is an outer launcher's (processes a node, nodes), None without one.

    `budget_group` is false where `budget` has one key and no options.

    Raises:
        ConfigurationError: An unknown word, `--allow-target` without a prefix, `trainer.devices` against the
            launcher's, or several options of a group that takes one.
    """
    refuse_unknown_words(words, flags=FLAGS, has_own_options=_own_folder(words) is not None)
    words, allowed = _split_allowed(words)
    # Hydra wants "++" for a key in no file.
    words = [f"++{word}" if word.startswith(NAMED_BY_PEOPLE) else _in_full(word) for word in words]
    overrides, flags = _split_flags(words)
    _require_one_option(overrides)
    _require_one_list(overrides)
    keys = values_by_key(overrides)
    _refuse_hydra(keys)
    added = ["budget=none"] if budget_group and _is_budget_typed_alone(keys) else []
    added += [*_ramp_overrides(keys), *_pass_overrides(keys)]
    if world is not None:
        added += _launcher_overrides(keys, *world)
    return Arguments(
        overrides=overrides,
        added=added,
        imported=brought_options(keys, own=_own_folder(flags)),
        flags=flags,
        allowed_targets=allowed,
    )


def parse_flags(words: Sequence[str], *, program: str = "lmtrain train", others: Sequence[str] = ()) -> Flags:
    """Take the flags of a command line apart; `others` are those that its program has besides.

    Raises:
        ConfigurationError: An unknown flag, one that is not offered, or two that exclude each other.
    """
    parser = FlagParser(prog=program, add_help=False, allow_abbrev=False, more=[*FLAGS, *others])
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("-p", "--package")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-cd", "--config-dir")
    for names in (("-i", "--info"), ("-cp", "--config-path"), ("-cn", "--config-name"), ("-r", "--run")):
        parser.add_argument(*names, nargs="?", const="")
    for names in (("-sc", "--shell-completion"), ("--experimental-rerun",), ("--version",)):
        parser.add_argument(*names, nargs="?", const="")
    found: dict[str, Any] = vars(parser.parse_args([*words]))
    for flag, instead in INSTEAD.items():
        if found[flag.lstrip("-").replace("-", "_")] is not None:
            raise ConfigurationError(f"{flag} is not offered here: {instead}.")
    package = found["package"]
    if not found["cfg"] and package is not None:
        raise ConfigurationError(
            f"--package {package} (-p) needs --cfg job, whose output it cuts. A queue's partition is `lmtrain launch "
            f"slurm` with --sbatch=partition={package}."
        )
    if not found["cfg"] and found["resolve"]:
        raise ConfigurationError("--resolve needs --cfg job, which prints the config.")
    if found["multirun"] and found["cfg"]:
        raise ConfigurationError("--multirun and --cfg are mutually exclusive: a sweep has many configs; leave -m out.")
    return Flags(found["multirun"], found["cfg"], package, found["resolve"], found["config_dir"])


def known_flags() -> frozenset[str]:
    """Return every flag with a meaning here, those with a replacement included."""
    return frozenset(FLAGS)


def _own_folder(words: Sequence[str]) -> str | None:
    """Return the folder of --config-dir, None without one."""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in OWN_FOLDER:
            return value if equals else following
    return None


def values_by_key(words: Iterable[str]) -> dict[str, str]:
    """Return the values of KEY=VALUE words by their keys."""
    return {key_of(word): word.partition("=")[2] for word in words if "=" in word}


def _in_full(word: str) -> str:
    """Return an override under its whole key; a run's name like a number keeps its letters."""
    key, equals, value = word.partition("=")
    key = SHORT_KEYS.get(key, key)
    return f"{key}{equals}'{value}'" if key == NAME and LIKE_A_NUMBER.fullmatch(value) else f"{key}{equals}{value}"


def _split_allowed(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the words into those of Hydra and the prefixes of --allow-target."""
    others: list[str] = []
    allowed: list[str] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag != ALLOW_TARGET:
            others.append(word)
            continue
        prefix = value if equals else next(remaining, "")
        if not prefix or prefix.startswith("-"):
            msg = f"{ALLOW_TARGET} needs the prefix of a target, such as {ALLOW_TARGET} my_package."
            raise ConfigurationError(msg)
        allowed.append(prefix)
    return others, allowed


def _split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the words into overrides and flags, wherever these stand; a flag with a word keeps it."""
    overrides: list[str] = []
    flags: list[str] = []
    for word in words:
        is_taken = bool(flags) and FLAGS.get(flags[-1], False) and "=" not in word
        (flags if word.startswith("-") or is_taken else overrides).append(word)
    return overrides, flags


def _require_one_option(overrides: Sequence[str]) -> None:
    """Refuse several options of a group that takes one: Hydra would mix them key by key."""
    for word in overrides:
        key, _, value = word.partition("=")
        if value.startswith("[") and key not in MANY_OPTIONS and (conf_folder() / key).is_dir():
            first = value.strip("[]").partition(",")[0].strip()
            raise ConfigurationError(f"{word}: {key} takes one option; nearest valid: {key}={first}.")


def _require_one_list(overrides: Sequence[str]) -> None:
    """Refuse a list of options that would silently replace an earlier one of the same command line."""
    for group in sorted(MANY_OPTIONS):
        typed = [word for word in overrides if key_of(word) == group and "=" in word]
        lists = [_options(word.partition("=")[2]) for word in typed]
        every = [*dict.fromkeys(chain.from_iterable(lists))]
        if len(typed) > 1 and lists[-1] and not {*every} <= {*lists[-1]}:
            from lmtrain.run.compose.group_options import beside_ordinary  # YAML: to refuse

            others = [option for option in every if option != "default"]
            whole = beside_ordinary(others) if group == "callbacks" else f"'{group}=[{','.join(every)}]'"
            if whole != f"'{typed[-1]}'":
                raise ConfigurationError(f"{' '.join(typed)}: only the last one would count; write {whole}.")


def _options(value: str) -> list[str]:
    """Return the options of a group's value; none of an empty one, nor of a sweep's."""
    if value == "null" or ("," in value and not value.startswith("[")):
        return []
    return [option.strip() for option in value.strip("[]").split(",") if option.strip()]


def _refuse_hydra(keys: Iterable[str]) -> None:
    """Refuse Hydra's own settings, which are not read except a sweep's."""
    for key in keys:
        if key == "hydra.searchpath":
            raise ConfigurationError(f"{key} is set by --config-dir FOLDER, for options of your own; use it instead.")
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(HYDRA_READ):
            read = ", ".join(name.rstrip(".") for name in HYDRA_READ)
            raise ConfigurationError(f"{key} has no effect: of Hydra's own settings only {read} are read.")


def _is_budget_typed_alone(given: Mapping[str, str]) -> bool:
    return "budget" not in given and any(key.startswith("budget.") for key in given)


def _ramp_overrides(given: Mapping[str, str]) -> list[str]:
    """Take the fraction of a ramp back where its length is given in steps or tokens."""
    return [
        f"schedule.{ramp}_fraction=null"
        for ramp in ("warmup", "warmdown")
        if any(given.get(f"schedule.{ramp}_{unit}", "null") != "null" for unit in ("steps", "tokens"))
        and f"schedule.{ramp}_fraction" not in given
    ]


def _pass_overrides(given: Mapping[str, str]) -> list[str]:
    """Take the number of validations back where their interval is given."""
    is_given = given.get(f"{VALIDATION}.every_steps", "null") != "null"
    return [f"{VALIDATION}.num_passes=null"] if is_given and f"{VALIDATION}.num_passes" not in given else []


def _launcher_overrides(given: Mapping[str, str], num_processes: int, num_nodes: int) -> list[str]:
    """Follow the launcher's numbers of processes and nodes."""
    added: list[str] = []
    for key, value in (("trainer.devices", num_processes), ("trainer.num_nodes", num_nodes)):
        if key not in given:
            added.append(f"{key}={value}")
        elif given[key] != str(value):
            msg = f"{key}={given[key]} but the launcher started {value}; leave {key} out or set it to {value}."
            raise ConfigurationError(msg)
    return added
