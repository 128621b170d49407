"""`lmtrain simulate OVERRIDES`: the planned step of one rank in a fleet of any size: memory, messages and time."""

from argparse import Namespace
from typing import Final

from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError
from lmtrain.json_output import print_json

END: Final = """\
Without batch.* each device has one sequence of up to 8,192 tokens. Ends with 1
where a fleet does not fit its devices."""


def simulate(words: list[str], *, program: str = "lmtrain simulate") -> int:
    """Print the simulated step of a config, or a table of several fleets; answer 1 where one does not fit.

    Raises:
        ConfigurationError: The command line is wrong, or a run of it would be refused.
    """
    asked, overrides = read_words(words, program=program)
    from lmtrain.run.planning.fleets import simulated_fleets

    found = simulated_fleets(overrides, ranks=asked.ranks, strategies=asked.strategies)
    for each in found:
        if asked.json:
            rows = [row.to_json() | {"scaling": row.efficiency(each.bases[row.strategy])} for row in each.rows]
            of_config = {"model": each.choices.options["model"], "swept": each.choices.swept, "chosen": each.chosen}
            print_json(of_config | (rows[0] if len(rows) == 1 else {}) | {"fleets": rows})
            continue
        from lmtrain.report.plans.simulation_page import page
        from lmtrain.report.show import show

        if each.chosen:
            print(each.chosen)
        show(page(each.choices.title, each.rows, each.bases))
    return EXIT_NO if any(row.fits is False for each in found for row in each.rows) else EXIT_DONE


def read_words(words: list[str], *, program: str = "lmtrain simulate") -> tuple[Namespace, list[str]]:
    """Return the command's flags, and the rest: overrides of a run.

    Raises:
        ConfigurationError: Ranks that are not numbers.
    """
    parser = run_parser("simulate", program, end=END)
    parser.add_argument("--ranks", type=_listed, default=[], metavar="8,64", help="a row per number of ranks")
    parser.add_argument("--strategies", type=_listed, default=[], metavar="fsdp,hsdp", help="a row per strategy")
    asked, overrides = parser.taken(words)
    if wrong := [word for word in asked.ranks if not word.isdigit() or int(word) < 1]:
        raise ConfigurationError(f"--ranks must be whole numbers of at least 1, as 8,64,512, got {wrong[0]}.")
    asked.ranks = [int(word) for word in asked.ranks]
    return asked, overrides


def _listed(values: str) -> list[str]:
    return [value.strip() for value in dict.fromkeys(values.split(",")) if value.strip()]
