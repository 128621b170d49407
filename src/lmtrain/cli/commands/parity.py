"""`lmtrain parity OVERRIDES`: a config's strategy on CPU ranks beside one process, tensor by tensor.

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
from lmtrain.run.compose.paths import without
from lmtrain.run.run_config import RunConfig

DEFAULTS: Final = {"parity.ranks": 2, "parity.steps": 3, "parity.tolerance": 1e-4}
DEVICES: Final = "trainer.devices="
LEAST: Final = {"parity.ranks": 2, "parity.steps": 1}
REPLACED: Final = ("budget", "schedule", "precision", "resume", "logger", "run.root", "run.name", "trainer")
WORDS: Final = ("precision=fp32", "schedule=constant", "budget=steps", "resume=never", "logger=none", "run.name=parity")
TOLD: Final = ("on CPU over gloo", "precision=fp32", "schedule=constant", "callbacks none")
UNLESS_TYPED: Final = ("compile=none",)


@dataclass(frozen=True, kw_only=True)
class ParityArguments:
    """The verb's own words on the command line, and the rest: overrides of a run."""

    as_json: bool
    num_ranks: int
    num_steps: int
    tolerance: float
    overrides: list[str]


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
    _require_no_launcher()
    arguments = parse_arguments([*without(asked.overrides, REPLACED), *_fixed(asked)])
    from lmtrain.run.compose.compose import Choices, for_each_config
    from lmtrain.run.gate import check

    found: list[Parity] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = check(composed, allowed=arguments.allowed_targets, typed=choices.overrides)
        found.append(_compared(config, asked, choices.overrides))

    for_each_config(task, arguments, config_name="train")
    for one in found:
        _tell(one, as_json=asked.as_json)
    return EXIT_NO if any(one.first for one in found) else EXIT_DONE


def read_words(words: list[str]) -> ParityArguments:
    """Take the verb's own words out: `--json` and `parity.KEY=NUMBER`; the rest are overrides of a run.

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
    if key in LEAST:
        if not value.isdigit() or int(value) < LEAST[key]:
            raise ConfigurationError(
                f"{key}={value} is no whole number of at least {LEAST[key]}; nearest valid: {LEAST[key]}."
            )
        return int(value)
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1:
        raise ConfigurationError(f"{key}={value} is no number between 0 and 1; usual: {DEFAULTS[key]:g}.")
    return number


def _require_no_launcher() -> None:
    outer = outer_launcher(os.environ)
    if outer is not None and outer.world_size > 1:
        raise ConfigurationError(
            f"lmtrain parity starts its own ranks, and this is one of {outer.world_size} of {outer.kind}; run it once, "
            "with parity.ranks=N."
        )


def _fixed(asked: ParityArguments) -> list[str]:
    words = [*WORDS, f"budget.steps={asked.num_steps}", "trainer.num_nodes=1", "trainer.accelerator=cpu"]
    return [*words, f"trainer.devices={asked.num_ranks}", *_untyped(asked.overrides)]


def _untyped(overrides: list[str]) -> list[str]:
    """Return the words for groups left alone: compilation takes a minute, and is compared where asked for."""
    typed = {word.partition("=")[0] for word in overrides}
    return [word for word in UNLESS_TYPED if word.partition("=")[0] not in typed]


def _told_ranks(asked: ParityArguments) -> list[str]:
    """Return the word for the ranks where the words asked for others."""
    others = [word for word in asked.overrides if word.startswith(DEVICES) and word != f"{DEVICES}{asked.num_ranks}"]
    return [f"{DEVICES}{asked.num_ranks} (parity.ranks)"] if others else []


def _compared(config: RunConfig, asked: ParityArguments, overrides: list[str]) -> Parity:
    """Check a config and its one process, prepare its data, and train both."""
    from lmtrain.run.execution.meta_build import build_on_meta
    from lmtrain.run.execution.parity_run import compare
    from lmtrain.run.execution.start import prepare_data
    from lmtrain.run.planning.parity_scale import pair_of
    from lmtrain.run.stored_runs.job import Job

    pair = pair_of(config.checked(), num_steps=asked.num_steps)
    changed = (*_told_ranks(asked), *TOLD, *_untyped(asked.overrides), *pair.changed)
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
        changed=changed,
    )


def _tell(found: Parity, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.to_json()))
        return
    from lmtrain.report.parity_page import print_parity

    print_parity(found)
