"""`lmtrain parity OVERRIDES`: a config's strategy on CPU ranks compared with one process, tensor by tensor.

Both take the config's first steps on the same data; the page names the first difference: step, tensor and ranks.
"""

import os
import sys
import tempfile
from typing import Final

from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.cli.help import run_parser
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, suggest
from lmtrain.json_output import print_json
from lmtrain.launch.detect import outer_launcher
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.run_config import RunConfig

DEFAULTS: Final = {"ranks": 2, "steps": 3, "tolerance": 1e-4}
LEAST: Final = {"ranks": 2, "steps": 1}
REPLACED: Final = ("budget", "schedule", "precision", "resume", "logger", "run.root", "run.name", "trainer")
WORDS: Final = (
    *("precision=fp32", "schedule=constant", "budget=steps", "resume=never", "logger=none", "run.name=parity"),
    "trainer.accelerator=cpu",
)
CHANGED: Final = ("on CPU over gloo", "precision=fp32", "schedule=constant", "callbacks none")

END: Final = """\
parity.ranks=2 CPU processes over gloo take the devices' place, for
parity.steps=3 optimizer steps in fp32 at a constant learning rate.
parity.tolerance=1e-4 is of a loss and of a tensor's largest gradient; a hundred
times as much of its largest update. The page lists all that it changes, and
names the first difference; then it ends with 1. It keeps nothing."""


def parity(words: list[str], *, program: str = "lmtrain parity") -> int:
    """Compare a config on ranks with one process; answer 1 where they differ.

    Raises:
        ConfigurationError: The command line is wrong, or the strategy cannot be compared.
        EnvironmentProblem: A training failed, or none is small enough for this machine.
    """
    asked, words = run_parser("parity", program, end=END).taken(words)
    settings = read_settings(words)
    outer = outer_launcher(os.environ)
    if outer is not None and outer.world_size > 1:
        raise ConfigurationError(
            f"parity starts its own ranks; run it once, outside of {outer.kind}, with parity.ranks=N."
        )
    typed = [word for word in words if not word.startswith("parity.")]
    fixed = [f"budget.steps={settings['steps']:g}", f"trainer.devices={settings['ranks']:g}", "trainer.num_nodes=1"]
    compiles = [] if any(key_of(word) == "compile" for word in typed) else ["compile=none"]  # it takes a minute
    arguments = parse_arguments([*without(typed, REPLACED), *WORDS, *fixed, *compiles])
    from lmtrain.run.gate import checked_configs

    found = [
        _compared(config, settings, choices.overrides, changed=(*CHANGED, *compiles))
        for config, choices in checked_configs(arguments)
    ]
    for one in found:
        if asked.json:
            print_json(one.to_json())
            continue
        from lmtrain.report.parity_page import page
        from lmtrain.report.show import show

        show(page(one))
    return EXIT_NO if any(one.first for one in found) else EXIT_DONE


def read_settings(words: list[str]) -> dict[str, float]:
    """Return the command's settings, `parity.KEY=NUMBER`, by their keys.

    Raises:
        ConfigurationError: An unknown key, or an impossible number.
    """
    settings: dict[str, float] = dict(DEFAULTS)
    for word in words:
        key, _, value = word.partition("=")
        if not key.startswith("parity."):
            continue
        name = key.removeprefix("parity.")
        if name not in DEFAULTS:
            raise ConfigurationError(f"{key} is not a setting of lmtrain parity.{suggest(name, DEFAULTS)}")
        number = float(parse_quantity(value, key))
        if name in LEAST and (number < LEAST[name] or not number.is_integer()):
            raise ConfigurationError(f"{key} must be a whole number of at least {LEAST[name]}, got {value}.")
        if name not in LEAST and not 0 < number < 1:
            raise ConfigurationError(f"{key} must be between 0 and 1, got {value}; {DEFAULTS[name]:g} is usual.")
        settings[name] = number
    return settings


def _compared(
    config: RunConfig, settings: dict[str, float], overrides: list[str], *, changed: tuple[str, ...]
) -> Parity:
    """Check a config and its one process, prepare its data, and train both."""
    from lmtrain.run.execution.meta_build import build_on_meta
    from lmtrain.run.execution.parity_run import compare
    from lmtrain.run.execution.start import prepare_data
    from lmtrain.run.planning.parity_configs import pair_of
    from lmtrain.run.stored_runs.job import Job

    num_steps, tolerance = int(settings["steps"]), settings["tolerance"]
    pair = pair_of(config.checked(), num_steps=num_steps)
    with tempfile.TemporaryDirectory(prefix="lmtrain-parity-") as root:
        named = (("alone", pair.alone), ("together", pair.together))
        jobs = [Job(config=one, overrides=overrides, name=name, root=root) for name, one in named]
        jobs = [build_on_meta(job, is_alone=False) for job in jobs]
        prepare_data(jobs[0])
        print("parity: one process, then its ranks…", file=sys.stderr, flush=True)
        differences = compare(jobs[0], jobs[1], num_steps=num_steps, tolerance=tolerance)
    return Parity(
        strategy=config.strategy.word,
        num_ranks=config.num_ranks,
        num_steps=num_steps,
        tolerance=tolerance,
        differences=differences,
        changed=(*changed, *pair.changed),
    )
