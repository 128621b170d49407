"""`lmtrain simulate OVERRIDES`: one rank's real step in a fleet of any size, its memory, messages and time."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.arguments import MULTIRUN

Value = TypeVar("Value")
LISTS: Final = ("--ranks", "--strategies", "--plot")


@dataclass(frozen=True, kw_only=True)
class SimulateArguments:
    """The verb's own words, and the rest: overrides of a run."""

    as_json: bool
    ranks: tuple[int, ...]
    strategies: tuple[str, ...]
    plot: Path | None
    overrides: list[str]


def simulate(words: list[str], *, program: str = "lmtrain simulate") -> int:
    """Print the simulated step of a config, or a table of several fleets; answer 1 where one does not fit.

    Raises:
        ConfigurationError: The command line is wrong, or a run of it would be refused.
        EnvironmentProblem: The plot cannot be written.
    """
    if HELP_FLAGS & set(words):
        print(verb_page("simulate", program=program))
        return EXIT_DONE
    asked = read_words(words)
    if asked.plot and not MULTIRUN.isdisjoint(words):
        raise ConfigurationError(
            f"--plot={asked.plot} draws the fleets of one config, and a sweep has several; nearest valid: a command "
            "for each, or --strategies fsdp,hsdp."
        )
    from lmtrain.run.planning.simulated_fleets import simulated_fleets

    found = simulated_fleets(asked.overrides, ranks=asked.ranks, strategies=asked.strategies)
    for each in found:
        if asked.plot:
            from lmtrain.report.plans.simulation_page import fleet_chart

            _write(asked.plot, fleet_chart(each.choices.title, each.rows))
        if asked.as_json:
            rows = [row.to_json() | {"scaling": row.efficiency(each.bases[row.strategy])} for row in each.rows]
            of_config = {"model": each.choices.options["model"], "swept": each.choices.swept, "chosen": each.chosen}
            print(json.dumps(of_config | {"fleets": rows}))
            continue
        from lmtrain.report.plans.simulation_page import print_simulation

        if each.chosen:
            print(each.chosen)
        print_simulation(each.choices.title, each.rows, each.bases)
    return EXIT_NO if any(row.fits is False for each in found for row in each.rows) else EXIT_DONE


def read_words(words: list[str]) -> SimulateArguments:
    """Take the verb's own words out: `--json`, `--ranks 8,64`, `--strategies fsdp,hsdp`, `--plot FILE`, also after "=".

    Raises:
        ConfigurationError: A word without values, ranks without numbers, or a file in no folder.
    """
    lists: dict[str, str] = {}
    rest: list[str] = []
    waiting: str | None = None
    for word in words:
        name, equals, value = word.partition("=")
        if waiting is not None:
            lists[waiting], waiting = word, None
        elif name in LISTS and equals:
            lists[name] = value
        elif word in LISTS:
            waiting = word
        elif word != "--json":
            rest.append(word)
    if waiting is not None or "" in lists.values():
        name = waiting or next(name for name, value in lists.items() if not value)
        example = {"--ranks": "8,64,512", "--strategies": "fsdp,hsdp", "--plot": "fleets.svg"}[name]
        raise ConfigurationError(f"{name} has no values; write {name} {example}.")
    return SimulateArguments(
        as_json="--json" in words,
        ranks=_each(lists.get("--ranks", ""), _rank),
        strategies=_each(lists.get("--strategies", ""), str),
        plot=_file(lists.get("--plot")),
        overrides=rest,
    )


def _each(values: str, read: Callable[[str], Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(read(value.strip()) for value in values.split(",") if value.strip()))


def _file(word: str | None) -> Path | None:
    if word is None:
        return None
    path = Path(word)
    if path.suffix != ".svg":
        raise ConfigurationError(f"--plot={word} is no SVG file; nearest valid: --plot={path.with_suffix('.svg')}.")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--plot={word}: there is no folder {path.parent} to write to.")
    return path


def _write(path: Path, chart: str) -> None:
    try:
        path.write_text(chart)
    except OSError as problem:
        raise EnvironmentProblem(f"--plot={path} cannot be written: {problem.strerror}.") from problem


def _rank(word: str) -> int:
    if not word.isdigit() or int(word) < 1:
        raise ConfigurationError(f"--ranks={word} is no number of ranks from 1 on; write --ranks 8,64,512.")
    return int(word)
