"""What the command line says beyond Hydra's own grammar.

Five things are settled before composing, so that a composed config is never changed afterwards:
- `budget.steps=20` alone replaces the default budget instead of competing with it;
- `schedule.warmup_steps=100` (or _tokens) alone replaces the option's warmup_fraction, and so for warmdown;
- under torchrun or SLURM, `trainer.devices` and `trainer.num_nodes` follow the launcher;
- `init_from=FOLDER` of an imported model brings that folder's own options: its model, its tokenizer;
- `--allow-target my_package.` lets `_target_` name code outside the allow-list; no file can do that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmtrain.composition.imported_options import imported_folder, imported_options
from lmtrain.errors import ConfigurationError

ALLOW_TARGET = "--allow-target"
SWITCHES = frozenset({"-m", "--multirun", "--resolve"})
NAMED_BY_PEOPLE = ("data.sources.",)  # keys below these are not in any file: Hydra wants "++" for them


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line taken apart: Hydra's share (`added` of it by us), and the target prefixes that were allowed."""

    hydra: list[str]
    added: list[str] = field(default_factory=list[str])
    allowed_targets: list[str] = field(default_factory=list[str])

    @property
    def overrides(self) -> list[str]:
        """Return the typed words that are overrides rather than flags."""
        return [word for word in self.hydra if "=" in word and not word.startswith("-") and word not in self.added]


def parse_arguments(
    words: Sequence[str], *, world: tuple[int, int] | None = None, budget_group: bool = True
) -> Arguments:
    """Take a command line apart; `world` is an outer launcher's (processes a node, nodes), None without one.

    `budget_group` is false where `budget` has one key and no options.

    Raises:
        ConfigurationError: `--allow-target` without a prefix, or `trainer.devices` against the launcher's.
    """
    hydra, allowed = _split_allowed([f"++{word}" if word.startswith(NAMED_BY_PEOPLE) else word for word in words])
    added: list[str] = []
    if budget_group and any(key.startswith("budget.") for key in _keys(hydra)) and "budget" not in _keys(hydra):
        added.append("budget=none")
    added += _ramp_overrides(_keys(hydra))
    if world is not None:
        added += _launcher_overrides(hydra, *world)
    added += imported_options(_keys(hydra))
    if folder := imported_folder(_keys(hydra)):
        hydra.insert(0, f"--config-dir={folder}")
    hydra.sort(key=lambda word: word not in SWITCHES)  # argparse wants them before or after all overrides
    return Arguments(hydra=[*hydra, *added], added=added, allowed_targets=allowed)


def _split_allowed(words: list[str]) -> tuple[list[str], list[str]]:
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


def _keys(words: list[str]) -> dict[str, str]:
    pairs = (word.lstrip("+~").partition("=") for word in words if "=" in word and not word.startswith("-"))
    return {key: value for key, _, value in pairs}


def _ramp_overrides(given: dict[str, str]) -> list[str]:
    """Take the fraction back where a length was given in another way."""
    return [
        f"schedule.{ramp}_fraction=null"
        for ramp in ("warmup", "warmdown")
        if any(given.get(f"schedule.{ramp}_{unit}", "null") != "null" for unit in ("steps", "tokens"))
        and f"schedule.{ramp}_fraction" not in given
    ]


def _launcher_overrides(words: list[str], num_processes: int, num_nodes: int) -> list[str]:
    given = _keys(words)
    added: list[str] = []
    for key, value in (("trainer.devices", num_processes), ("trainer.num_nodes", num_nodes)):
        if key not in given:
            added.append(f"{key}={value}")
        elif given[key] != str(value):
            msg = f"{key}={given[key]} but the launcher started {value}; leave {key} out or set it to {value}."
            raise ConfigurationError(msg)
    return added
