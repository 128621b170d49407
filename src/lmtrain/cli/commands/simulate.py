"""`lmtrain simulate OVERRIDES`: the planned step of one rank in a fleet of any size: memory, messages and time."""

from typing import Final

from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO
from lmtrain.json_output import print_json

END: Final = """\
-m 'cluster.num_nodes=1,8,64' strategy=fsdp,hsdp makes a table of six fleets.
Without batch.* each device has one sequence of up to 8,192 tokens. Ends with 1
where a fleet does not fit its devices."""


def simulate(words: list[str], *, program: str = "lmtrain simulate") -> int:
    """Print the simulated step of a config, or a table of a sweep's; answer 1 where one does not fit."""
    asked, overrides = run_parser("simulate", program, end=END).taken(words)
    from lmtrain.run.planning.fleets import simulated_fleets

    found = simulated_fleets(overrides)
    if asked.json:
        for each in found:
            of_config = {"model": each.choices.options["model"], "swept": each.choices.swept, "chosen": each.chosen}
            print_json(of_config | each.fleet.to_json())
    else:
        from lmtrain.report.plans.simulation_page import page
        from lmtrain.report.show import show

        for chosen in dict.fromkeys(each.chosen for each in found if each.chosen):
            print(chosen)
        show(page(found[0].choices.options["model"], {" ".join(each.choices.swept): each.fleet for each in found}))
    return EXIT_NO if any(each.fleet.fits is False for each in found) else EXIT_DONE
