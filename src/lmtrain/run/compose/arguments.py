"""The command line, taken apart before Hydra composes a config.

Besides Hydra's own grammar:
- `budget.steps=20` alone replaces the default budget instead of competing with it;
- `schedule.warmup_steps=100` (or _tokens) alone replaces the option's warmup_fraction, and so for warmdown;
- `callbacks.validation.every_steps=10` alone replaces the option's num_passes;
- under torchrun or SLURM, `trainer.devices` and `trainer.num_nodes` follow the launcher;
- `init_from=FOLDER` or `init_from=RUN` brings the options of that model or run (start_options.py);
- `run.name=NAME` of an existing run brings the options that it was started with;
- `--allow-target my_package.` lets `_target_` name code outside the allow-list; no file can do that.

Hydra's own entry point is not used: it instantiates the nodes under `hydra` in any file, past every allow-list.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lmtrain.errors import ConfigurationError
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import MANY_OPTIONS, NAMED_BY_PEOPLE, SHORT_KEYS, key_of, option_names
from lmtrain.run.compose.start_options import brought_options, own_options
from lmtrain.run.compose.suggestions import refuse_unknown_words

NAME: Final = "run.name"
LIKE_A_NUMBER: Final = re.compile(r"[\d.+-][\w.+-]*|true|false|nan|inf", re.IGNORECASE)  # 1.10 would become 1.1
# A setting with a default -> the settings that take its place where one is given.
REPLACED: Final = {
    "schedule.warmup_fraction": ("schedule.warmup_steps", "schedule.warmup_tokens"),
    "schedule.warmdown_fraction": ("schedule.warmdown_steps", "schedule.warmdown_tokens"),
    "callbacks.validation.num_passes": ("callbacks.validation.every_steps",),
}
HYDRA_READ: Final = ("hydra/sweeper", "hydra.sweeper.params.")
ALLOW_TARGET: Final = "--allow-target"
ALLOW_TARGET_OPTION: Final[dict[str, Any]] = {
    "action": "append",
    "default": [],
    "metavar": "PREFIX",
    "help": "let a config name code of yours, as my_package.",
}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line taken apart: overrides as typed, those `added` here, and flags.

    `imported` are the options that `init_from` brings, `continued` those of the run that goes on; typed ones override
    both. `show` is the part of the config to print instead of running, `config_dir` the person's own folder of
    options, and `allowed_targets` are the prefixes that --allow-target names.
    """

    overrides: list[str]
    continued: list[str] = field(default_factory=list[str])
    added: list[str] = field(default_factory=list[str])
    imported: list[str] = field(default_factory=list[str])
    is_sweep: bool = False
    show: str | None = None
    resolve: bool = False
    config_dir: str | None = None
    allowed_targets: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Return all overrides, later ones overriding earlier ones."""
        return [*self.imported, *self.continued, *self.overrides, *self.added]

    def of_trial(self, words: Sequence[str]) -> "Arguments":
        """Return the arguments of one trial's `words` of a sweep, with the options of its `init_from`."""
        if not any(key_of(word) == "init_from" for word in words):
            return self
        return replace(self, imported=brought_options(values_by_key(words), own=self.config_dir))


class Choices:
    """What Hydra reports of one composed config: its overrides, the chosen options, and its place in a sweep.

    `typed` are its overrides but for those added or brought by `init_from`, `swept` the words that not all trials of
    its sweep have.
    """

    def __init__(self, state: Any, arguments: Arguments, *, trial: Arguments | None = None) -> None:
        """Read the `hydra` node of a composed config; `trial` are the arguments of a trial of a sweep."""
        self.overrides: list[str] = list(state.overrides.task)
        others = {*arguments.added, *(trial or arguments).imported}
        self.typed = [word for word in self.overrides if word not in others]
        self.options: dict[str, str] = {name: str(option) for name, option in state.runtime.choices.items()}
        self.is_trial = trial is not None
        self.swept: list[str] = []

    @property
    def title(self) -> str:
        """Return the model and the trial's words."""
        model = self.options["model"]
        return ", ".join([model, *(word for word in self.swept if word != f"model={model}")])


def parse_arguments(
    words: Sequence[str],
    *,
    world: tuple[int, int] | None = None,
    budget_group: bool = True,
    program: str = "lmtrain train",
) -> Arguments:
    """Take a command line apart; `world` is an outer launcher's (processes a node, nodes), None without one.

    `budget_group` is false where `budget` has one key and no options.

    Raises:
        ConfigurationError: An unknown word or flag, flags that exclude each other, `trainer.devices` against the
            launcher's, or several options of a group that takes one.
    """
    flags, words = _parse_flags(words, program=program)
    is_sweep, own = flags["is_sweep"], flags["config_dir"]
    # Hydra wants "++" for a key in no file.
    overrides = [f"++{word}" if word.startswith(NAMED_BY_PEOPLE) else _in_full(word) for word in words]
    keys = values_by_key(overrides)
    _refuse_wrong_keys(keys)
    is_budget_alone = "budget" not in keys and any(key.startswith("budget.") for key in keys)
    added = ["budget=none"] if budget_group and is_budget_alone else []
    added += [
        f"{other}=null"
        for other, replacing in REPLACED.items()
        if other not in keys and any(keys.get(key, "null") != "null" for key in replacing)
    ]
    for key, value in zip(("trainer.devices", "trainer.num_nodes"), world or (), strict=False):
        if key not in keys:
            added.append(f"{key}={value}")
        elif keys[key] != str(value):
            msg = f"{key}={keys[key]} but the launcher started {value}; leave {key} out or set it to {value}."
            raise ConfigurationError(msg)
    continued = [] if is_sweep else own_options(keys)
    imported = brought_options({**values_by_key(continued), **keys}, own=own)
    return Arguments(overrides=overrides, continued=continued, added=added, imported=imported, **flags)


def flags_parser(program: str, **page: Any) -> FlagParser:
    """Return the parser of a config's flags; `page` are the texts of its help page."""
    parser = FlagParser(prog=program, add_help=False, allow_abbrev=False, **page)
    parser.add_argument(
        "-m", "--multirun", dest="is_sweep", action="store_true", help="a trial for each value of KEY=VALUE,VALUE"
    )
    parts = ("job", "hydra", "all")
    parser.add_argument("-c", "--cfg", dest="show", choices=parts, metavar="PART", help="print the config: job")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: write its references out")
    parser.add_argument("-cd", "--config-dir", metavar="FOLDER", help="of options of yours, GROUP/OPTION.yaml")
    parser.add_argument(ALLOW_TARGET, dest="allowed_targets", **ALLOW_TARGET_OPTION)
    return parser


def _parse_flags(words: Sequence[str], *, program: str) -> tuple[dict[str, Any], list[str]]:
    """Take the flags of a command line off its other words."""
    parser = flags_parser(program)
    found, others = parser.parse_known_args([*words])
    refuse_unknown_words(others, has_own_options=found.config_dir is not None)
    parser.refuse_unknown([word for word in others if word.startswith("-")])
    if not found.show and found.resolve:
        raise ConfigurationError("--resolve needs --cfg job, which prints the config.")
    if found.is_sweep and found.show:
        raise ConfigurationError("--multirun and --cfg are mutually exclusive: a sweep has many configs; leave -m out.")
    return {**vars(found), "allowed_targets": tuple(found.allowed_targets)}, others


def values_by_key(words: Iterable[str]) -> dict[str, str]:
    """Return the values of KEY=VALUE words by their keys."""
    return {key_of(word): word.partition("=")[2] for word in words if "=" in word}


def _in_full(word: str) -> str:
    """Return an override under its whole key; a run's name like a number keeps its letters."""
    key, equals, value = word.partition("=")
    key = SHORT_KEYS.get(key, key)
    return f"{key}{equals}'{value}'" if key == NAME and LIKE_A_NUMBER.fullmatch(value) else f"{key}{equals}{value}"


def _refuse_wrong_keys(keys: Mapping[str, str]) -> None:
    """Refuse several options of a group that takes one, which Hydra mixes key by key, and settings of Hydra's.

    Of those only a sweep's are read.
    """
    for key, value in keys.items():
        if value.startswith("[") and key not in MANY_OPTIONS and option_names(key):
            first = value.strip("[]").partition(",")[0].strip()
            raise ConfigurationError(f"{key}={value}: {key} takes one option; write {key}={first}.")
        if key == "hydra.searchpath":
            raise ConfigurationError(f"{key} is set by --config-dir FOLDER, for options of your own; use it instead.")
        if key.startswith(("hydra.", "hydra/")) and not key.startswith(HYDRA_READ):
            read = ", ".join(name.rstrip(".") for name in HYDRA_READ)
            raise ConfigurationError(f"{key} has no effect: of Hydra's own settings only {read} are read.")
