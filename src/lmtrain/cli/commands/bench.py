"""`lmtrain bench OVERRIDES`: a training config's speed here, by part, and changes to raise it.

It trains for some seconds in a temporary folder, with the config's own data, model, callbacks and Trainer; then,
within a minute, for some more with each promising change. A change that compiles anew is tried only with `--try`.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from lmtrain.accounting.observed.step_changes import Change, ChangeOutcome, best_first
from lmtrain.accounting.observed.step_parts import Bench
from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.callbacks import facts_of_callback

SECONDS: Final = 8.0
TRIAL_SHARE: Final = 0.4  # of those seconds, for each change
WHOLE_SECONDS: Final = 50.0  # of the whole command: no further change is tried later, without --try
REPLACED: Final = ("budget", "run.root", "run.name", "resume", "logger")
WORDS: Final = (
    "budget=steps",
    "budget.steps=1000000",
    "run.name=bench",
    "resume=never",
    "logger=none",
)


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """The verb's own words on the command line, and the rest: overrides of a run."""

    as_json: bool
    tries_all: bool
    seconds: float
    overrides: list[str]


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """A composed config with Hydra's choices for it."""

    config: RunConfig
    choices: Choices


def bench(words: list[str], *, program: str = "lmtrain bench") -> int:
    """Measure the step of a config, or of each of a sweep, and print it.

    Raises:
        ConfigurationError: The command line is wrong.
        EnvironmentProblem: The machine cannot train it.
    """
    if HELP_FLAGS & set(words):
        print(verb_page("bench", program=program))
        return EXIT_DONE
    if "--ladder" in words:
        from lmtrain.cli.commands.bench_ladder import bench_ladder

        return bench_ladder(words, program=program)
    began = time.monotonic()
    asked = read_words(words)
    found = configs(asked.overrides)
    for one in found:
        from lmtrain.run.execution.bench_run import measure

        _say(f"{one.choices.title}: building, and the first step with what it compiles")
        measured = measure(one.config, overrides=one.choices.overrides, seconds=asked.seconds)
        outcomes = tried(one.config, measured, asked, began=began, is_alone=len(found) == 1)
        if asked.as_json:
            print(
                json.dumps(
                    {
                        "swept": one.choices.swept,
                        **measured.to_json(),
                        "advice": [each.to_json() for each in best_first(outcomes)],
                    }
                )
            )
            continue
        from lmtrain.report.bench_page import print_bench

        print_bench(measured, outcomes, title=one.choices.title)
    return EXIT_DONE


def read_words(words: list[str]) -> BenchArguments:
    """Take the verb's own words out: `--json`, `--try` and `--seconds=8`; the rest are overrides of a run.

    Raises:
        ConfigurationError: The seconds are no number above 0.
    """
    seconds, rest = SECONDS, [word for word in words if word not in ("--json", "--try")]
    for word in [word for word in rest if word.partition("=")[0] == "--seconds"]:
        rest.remove(word)
        value = word.partition("=")[2]
        if not value.replace(".", "", 1).isdigit() or not float(value) > 0:
            raise ConfigurationError(f"{word} is no number of seconds above 0; nearest valid: --seconds={SECONDS:g}.")
        seconds = float(value)
    return BenchArguments(as_json="--json" in words, tries_all="--try" in words, seconds=seconds, overrides=rest)


def configs(words: list[str]) -> list[BenchConfig]:
    """Compose the config of a command line, or each of a sweep, with budget and bookkeeping replaced."""
    arguments = parse_arguments([*without(words, REPLACED), *WORDS])
    from lmtrain.run.compose.compose import for_each_config
    from lmtrain.run.gate import check

    found: list[BenchConfig] = []

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = check(composed, allowed=arguments.allowed_targets, typed=choices.overrides)
        require_one_process(config)
        require_parts(config)
        kept = {name: node.values for name, node in config.callbacks.items() if not _acts_between_steps(config, node)}
        found.append(BenchConfig(config=config.changed(callbacks=kept), choices=choices))

    for_each_config(task, arguments, config_name="train")
    return found


def _acts_between_steps(config: RunConfig, node: Node) -> bool:
    facts = facts_of_callback(config, node)
    return facts is not None and facts.acts_between_steps


def require_one_process(config: RunConfig) -> None:
    """Refuse a run of several processes, whose parts wait for one another.

    Raises:
        ConfigurationError: More than one device or node.
    """
    for key, value in (("devices", config.trainer.devices), ("num_nodes", config.trainer.num_nodes)):
        if value > 1:
            raise ConfigurationError(
                f"trainer.{key}={value}: lmtrain bench times one process; use trainer.{key}=1 with "
                "batch.tokens_per_step divided by it, and lmtrain plan for what the links add."
            )


def require_parts(config: RunConfig) -> None:
    """Refuse a step launched as one: it has no parts to time.

    Raises:
        ConfigurationError: CUDA graphs.
    """
    if config.compile.get("cuda_graphs"):
        raise ConfigurationError(
            "compile.cuda_graphs=true: lmtrain bench times a step by part, and this one is launched as one; nearest "
            "valid: compile.cuda_graphs=false."
        )


def tried(
    config: RunConfig, found: Bench, asked: BenchArguments, *, began: float, is_alone: bool
) -> list[ChangeOutcome]:
    """Train with each promising change, one at a time, while there is time."""
    from lmtrain.parallel.compilation import missing_compiler
    from lmtrain.run.planning.bench_changes import changes

    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = threads - (config.trainer.cpu_threads or threads)
    named = changes(config, found, can_compile=missing_compiler() is None, free_threads=free)
    needed = found.setup_seconds + found.first_step_seconds + TRIAL_SHARE * asked.seconds
    outcomes: list[ChangeOutcome] = []
    for change in named:
        has_time = time.monotonic() - began + needed < WHOLE_SECONDS
        compiles = found.is_compiled if change.compiles is None else change.compiles
        worth = is_alone and (asked.tries_all or (has_time and not compiles))
        outcome = _outcome(change, found, asked) if worth else ChangeOutcome(change=change, saved=None)
        outcomes += [outcome] if outcome else []
    return outcomes


def _outcome(change: Change, found: Bench, asked: BenchArguments) -> ChangeOutcome | None:
    """Return a change's saving, None where the config cannot be changed so."""
    from lmtrain.run.execution.bench_run import measure

    _say(f"trying {' '.join(change.words)}")
    keys = {key_of(word) for word in change.words}
    words = [word for word in asked.overrides if key_of(word) not in keys]
    try:
        (other,) = configs([*words, *change.words])
        measured = measure(
            other.config,
            overrides=other.choices.overrides,
            seconds=TRIAL_SHARE * asked.seconds,
            counts_syncs=False,
        )
    except LMTRAIN_ERRORS as problem:
        _say(f"  it cannot be: {problem}")
        return None
    before = min(found.step_seconds) / found.batch.tokens_per_step
    return ChangeOutcome(change=change, saved=1 - min(measured.step_seconds) / measured.batch.tokens_per_step / before)


def _say(line: str) -> None:
    print(f"bench: {line}…", file=sys.stderr, flush=True)
