"""`lmtrain parity OVERRIDES`: a config's strategy on CPU ranks compared with one process, tensor by tensor.

Both take the config's first steps on the same data; the page names the first difference: step, tensor and ranks.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.accounting.observed.parity_checks import Parity
from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, suggest
from lmtrain.launch.detect import outer_launcher
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.run_config import RunConfig

DEFAULTS: Final = {"parity.ranks": 2, "parity.steps": 3, "parity.tolerance": 1e-4}
LEAST: Final = {"parity.ranks": 2, "parity.steps": 1}
REPLACED: Final = ("budget", "schedule", "precision", "resume", "logger", "run.root", "run.name", "trainer")
WORDS: Final = ("precision=fp32", "schedule=constant", "budget=steps", "resume=never", "logger=none", "run.name=parity")
CHANGED: Final = ("on CPU over gloo", "precision=fp32", "schedule=constant", "callbacks none")
UNCOMPILED: Final = "compile=none"  # unless typed: compilation takes a minute
DEVICES: Final = "trainer.devices"


@dataclass(frozen=True, kw_only=True)
class ParityArguments:
    """The command's own arguments, and the rest: overrides of a run."""

    as_json: bool
    num_ranks: int
    num_steps: int
    tolerance: float
    overrides: list[str]

    @property
    def uncompiled(self) -> list[str]:
        """Return the setting against compilation where none is typed."""
        return [] if any(key_of(word) == "compile" for word in self.overrides) else [UNCOMPILED]

    @property
    def fixed(self) -> list[str]:
        """Return the settings of the comparison."""
        trainer = ["trainer.num_nodes=1", "trainer.accelerator=cpu", f"{DEVICES}={self.num_ranks}"]
        return [*WORDS, f"budget.steps={self.num_steps}", *trainer, *self.uncompiled]

    @property
    def changed(self) -> list[str]:
        """Return the settings that differ from those asked for."""
        typed = [word for word in self.overrides if key_of(word) == DEVICES]
        own = f"{DEVICES}={self.num_ranks}"
        ranks = [f"{own} (parity.ranks)"] if typed and own not in typed else []
        return [*ranks, *CHANGED, *self.uncompiled]


def parity(words: list[str], *, program: str = "lmtrain parity") -> int:
    """Compare a config on ranks with one process; answer 1 where they differ.

    Raises:
        ConfigurationError: The command line is wrong, or the strategy cannot be compared.
        EnvironmentProblem: A training failed, or none is small enough for this machine.
    """
    if HELP_FLAGS & set(words):
        print(verb_page("parity", program=program))
        return EXIT_DONE
    asked = read_words(words)
    outer = outer_launcher(os.environ)
    if outer is not None and outer.world_size > 1:
        raise ConfigurationError(
            f"parity starts its own ranks; run it once, outside of {outer.kind}, with parity.ranks=N."
        )
    arguments = parse_arguments([*without(asked.overrides, REPLACED), *asked.fixed])
    from lmtrain.run.compose.arguments import Choices
    from lmtrain.run.compose.compose import for_each_config
    from lmtrain.run.gate import check

    found: list[Parity] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = check(composed, allowed=arguments.allowed_targets, typed=choices.overrides)
        found.append(_compared(config, asked, choices.overrides))

    for_each_config(task, arguments, config_name="train")
    for one in found:
        if asked.as_json:
            print(json.dumps(one.to_json()))
            continue
        from lmtrain.report.parity_page import print_parity

        print_parity(one)
    return EXIT_NO if any(one.first for one in found) else EXIT_DONE


def read_words(words: list[str]) -> ParityArguments:
    """Take the command's own arguments out: `--json` and `parity.KEY=NUMBER`; the rest are overrides of a run.

    Raises:
        ConfigurationError: An unknown key, or an impossible number.
    """
    settings: dict[str, float] = dict(DEFAULTS)
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith("parity."):
            settings[key] = _number(key, value)
    return ParityArguments(
        as_json="--json" in words,
        num_ranks=int(settings["parity.ranks"]),
        num_steps=int(settings["parity.steps"]),
        tolerance=settings["parity.tolerance"],
        overrides=[word for word in words if word != "--json" and not word.startswith("parity.")],
    )


def _number(key: str, value: str) -> float:
    if key not in DEFAULTS:
        raise ConfigurationError(f"{key} is not a setting of lmtrain parity.{suggest(key, DEFAULTS)}")
    try:
        number = int(value) if key in LEAST else float(value)
    except ValueError:
        number = -1
    if key in LEAST and number < LEAST[key]:
        raise ConfigurationError(f"{key} must be a whole number of at least {LEAST[key]}, got {value}.")
    if key not in LEAST and not 0 < number < 1:
        raise ConfigurationError(f"{key} must be between 0 and 1, got {value}; {DEFAULTS[key]:g} is usual.")
    return number


def _compared(config: RunConfig, asked: ParityArguments, overrides: list[str]) -> Parity:
    """Check a config and its one process, prepare its data, and train both."""
    from lmtrain.run.execution.meta_build import build_on_meta
    from lmtrain.run.execution.parity_run import compare
    from lmtrain.run.execution.start import prepare_data
    from lmtrain.run.planning.parity_configs import pair_of
    from lmtrain.run.stored_runs.job import Job

    pair = pair_of(config.checked(), num_steps=asked.num_steps)
    with tempfile.TemporaryDirectory(prefix="lmtrain-parity-") as root:
        jobs = [
            Job(config=one, overrides=overrides, name=name, root=root)
            for name, one in (("alone", pair.alone), ("together", pair.together))
        ]
        jobs = [build_on_meta(job, is_alone=False) for job in jobs]
        prepare_data(jobs[0])
        print("parity: one process, then its ranks…", file=sys.stderr, flush=True)
        differences = compare(jobs[0], jobs[1], num_steps=asked.num_steps, tolerance=asked.tolerance)
    return Parity(
        strategy=config.strategy.word,
        num_ranks=asked.num_ranks,
        num_steps=asked.num_steps,
        tolerance=asked.tolerance,
        differences=differences,
        changed=(*asked.changed, *pair.changed),
    )
