"""`lmtrain bench OVERRIDES`: a training config's speed on this machine, by part, and changes that may raise it.

It trains for some seconds in a temporary folder, with the config's own data, model, callbacks and Trainer.
"""

import sys
from typing import Final

from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, ConfigurationError
from lmtrain.json_output import print_json
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.compose.paths import without
from lmtrain.run.run_config import RunConfig

REPLACED: Final = ("budget", "run.root", "run.name", "resume", "logger")
WORDS: Final = ("budget=steps", "budget.steps=1000000", "run.name=bench", "resume=never", "logger=none")


def bench(words: list[str], *, program: str = "lmtrain bench") -> int:
    """Measure the step of a config, or of each of a sweep, and print it."""
    parser = run_parser("bench", program, end="Prepares the config's data if need be; keeps nothing.")
    parser.add_argument("--seconds", type=float, default=8.0, help="of measuring, after warm-up (8)")
    asked, overrides = parser.taken(words)
    if not 0 < asked.seconds < float("inf"):
        raise ConfigurationError(f"--seconds must be above 0, got {asked.seconds:g}.")
    found = configs(overrides)
    from lmtrain.report.bench_page import page
    from lmtrain.report.show import show
    from lmtrain.run.execution.bench_run import measure  # torch: after the configs are checked

    for config, choices in found:
        print(f"bench: {choices.title}: building, and the first step…", file=sys.stderr, flush=True)
        measured = measure(config, overrides=choices.overrides, seconds=asked.seconds)
        if asked.json:
            print_json({"swept": choices.swept, **measured.to_json()})
        else:
            show(page(measured, title=choices.title))
    return EXIT_DONE


def configs(words: list[str]) -> list[tuple[RunConfig, Choices]]:
    """Compose the config of a command line, or each of a sweep, with budget and bookkeeping replaced."""
    arguments = parse_arguments([*without(words, REPLACED), *WORDS])
    from lmtrain.run.gate import checked_configs

    found: list[tuple[RunConfig, Choices]] = []

    for config, choices in checked_configs(arguments):
        for key, value in (("devices", config.trainer.devices), ("num_nodes", config.trainer.num_nodes)):
            if value > 1:
                raise ConfigurationError(f"trainer.{key} must be 1, as bench times one process, got {value}.")
        acting = {key for key, facts in config.callback_facts.items() if facts.acts_between_steps}
        kept = {name: node.values for name, node in config.callbacks.items() if node.key not in acting}
        found.append((config.changed(callbacks=kept), choices))
    return found
