"""`lmtrain bench OVERRIDES`: a training config's speed on this machine, by part, and changes to raise it.

It trains for some seconds in a temporary folder, with the config's own data, model, callbacks and Trainer; then,
within a minute, for some more with each promising change. A change that compiles again is tried only with `--try`.
`--ladder` times the published optimisations one after another, each with all before it.
"""

import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmtrain.accounting.observed.bench import Bench, Change, best_first
from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, LMTRAIN_ERRORS, ConfigurationError
from lmtrain.run.compose.arguments import Choices, parse_arguments
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.run_config import RunConfig
from lmtrain.run.schema.node import Node
from lmtrain.run.validators.callbacks import facts_of_callback
from lmtrain.storage import foreign_json

if TYPE_CHECKING:
    from lmtrain.report.bench_page import RungSpeed

TRIAL_SHARE: Final = 0.4  # of --seconds, for each change
WHOLE_SECONDS: Final = 50.0  # of the whole command: no further change is tried later, without --try
REPLACED: Final = ("budget", "run.root", "run.name", "resume", "logger")
WORDS: Final = ("budget=steps", "budget.steps=1000000", "run.name=bench", "resume=never", "logger=none")
RUNGS: Final = Path(__file__).with_name("ladder.json")
CALLBACKS: Final = ("step_log", "throughput", "token_budget")
DEVICES: Final = "trainer.devices"
LEAST_STEPS: Final = 3


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
    asked, overrides = read_words(words, program=program)
    if asked.ladder:
        return _ladder(asked, overrides)
    began = time.monotonic()
    found = configs(overrides)
    from lmtrain.run.execution.bench_run import measure  # torch: after the configs are checked

    for one in found:
        _say(f"{one.choices.title}: building, and the first step with its compilation")
        measured = measure(one.config, overrides=one.choices.overrides, seconds=asked.seconds)
        changes = tried(one.config, measured, asked, overrides, began=began, is_alone=len(found) == 1)
        if asked.json:
            advice = [each.to_json() for each in best_first(changes)]
            print(json.dumps({"swept": one.choices.swept, **measured.to_json(), "advice": advice}))
            continue
        from lmtrain.report.bench_page import print_bench

        print_bench(measured, changes, title=one.choices.title)
    return EXIT_DONE


def read_words(words: Sequence[str], *, program: str = "lmtrain bench") -> tuple[Namespace, list[str]]:
    """Return the command's flags, and the rest: overrides of a run.

    Raises:
        ConfigurationError: A flag's value is impossible.
    """
    parser = FlagParser(prog=program, allow_abbrev=False, add_help=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--try", dest="tries_all", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ladder", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    asked, overrides = parser.taken(words)
    if not 0 < asked.seconds < float("inf"):
        raise ConfigurationError(f"--seconds must be above 0, got {asked.seconds:g}.")
    if asked.steps < LEAST_STEPS:
        raise ConfigurationError(f"--steps must be at least {LEAST_STEPS}, got {asked.steps}.")
    return asked, overrides


def configs(words: Sequence[str]) -> list[BenchConfig]:
    """Compose the config of a command line, or each of a sweep, with budget and bookkeeping replaced.

    Raises:
        ConfigurationError: The config is wrong, or its step cannot be timed by part.
    """
    arguments = parse_arguments([*without(words, REPLACED), *WORDS])
    from lmtrain.run.compose.compose import for_each_config
    from lmtrain.run.gate import check

    found: list[BenchConfig] = []

    def acts_between_steps(config: RunConfig, node: Node) -> bool:
        facts = facts_of_callback(config, node)
        return facts is not None and facts.acts_between_steps

    def task(composed: dict[str, Any], choices: Choices) -> None:
        config = check(composed, allowed=arguments.allowed_targets, typed=choices.overrides)
        for key, value in (("devices", config.trainer.devices), ("num_nodes", config.trainer.num_nodes)):
            if value > 1:
                raise ConfigurationError(f"trainer.{key} must be 1, as bench times one process, got {value}.")
        if config.compile.get("cuda_graphs"):
            raise ConfigurationError("compile.cuda_graphs must be false: a step launched as one has no parts to time.")
        kept = {name: node.values for name, node in config.callbacks.items() if not acts_between_steps(config, node)}
        found.append(BenchConfig(config=config.changed(callbacks=kept), choices=choices))

    for_each_config(task, arguments, config_name="train")
    return found


def tried(
    config: RunConfig, found: Bench, asked: Namespace, overrides: Sequence[str], *, began: float, is_alone: bool
) -> list[Change]:
    """Train with each promising change, one at a time, while there is time."""
    from lmtrain.parallel.compilation import missing_compiler
    from lmtrain.run.planning.bench_changes import changes

    needed = found.setup_seconds + found.first_step_seconds + TRIAL_SHARE * asked.seconds
    outcomes: list[Change] = []
    for change in changes(config, found, can_compile=missing_compiler() is None):
        has_time = time.monotonic() - began + needed < WHOLE_SECONDS
        compiles = found.is_compiled if change.compiles is None else change.compiles
        if is_alone and (asked.tries_all or (has_time and not compiles)):
            outcome = _outcome(change, found, overrides, seconds=TRIAL_SHARE * asked.seconds)
            outcomes += [outcome] if outcome else []
        else:
            outcomes.append(change)
    return outcomes


def _outcome(change: Change, found: Bench, overrides: Sequence[str], *, seconds: float) -> Change | None:
    """Return a change with its saving, None where the config refuses it."""
    from lmtrain.run.execution.bench_run import measure

    _say(f"trying {' '.join(change.words)}")
    keys = {key_of(word) for word in change.words}
    words = [word for word in overrides if key_of(word) not in keys]
    try:
        (other,) = configs([*words, *change.words])
        measured = measure(other.config, overrides=other.choices.overrides, seconds=seconds, counts_syncs=False)
    except LMTRAIN_ERRORS as problem:
        _say(f"  not possible: {problem}")
        return None
    before = min(found.step_seconds) / found.batch.tokens_per_step
    return replace(change, saved=1 - min(measured.step_seconds) / measured.batch.tokens_per_step / before)


def _ladder(asked: Namespace, overrides: Sequence[str]) -> int:
    """Train some steps on each rung, and print tokens/s and MFU."""
    from lmtrain.report.bench_page import ladder_lines
    from lmtrain.run.execution.tried_run import checked_config, kept

    checked_config(overrides)
    typed = kept(overrides)
    found = [climbed(name, words, typed, num_steps=asked.steps) for name, words in rungs(typed).items()]
    print(json.dumps({"rungs": [asdict(one) for one in found]}) if asked.json else "\n".join(ladder_lines(found)))
    return EXIT_DONE


def rungs(typed: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return all settings of each rung by its name; the last one has the typed ranks, or two, the others one."""
    ranks = next((word for word in typed if key_of(word) == DEVICES), f"{DEVICES}=2")
    rows = foreign_json.read(RUNGS)
    found: dict[str, tuple[str, ...]] = {}
    words: dict[str, str] = {}
    for row in rows:
        own = row["words"] if row is not rows[-1] else [ranks]
        words |= {key_of(word): word for word in own}
        found[row["rung"]] = tuple(words.values())
    return found


def climbed(name: str, words: Sequence[str], typed: Sequence[str], *, num_steps: int) -> "RungSpeed":
    """Return the speed of a rung; its settings take the place of typed ones."""
    from lmtrain.report.bench_page import RungSpeed
    from lmtrain.run.execution.tried_run import try_run

    _say(f"{name}: {' '.join(words)}")
    own = {key_of(word) for word in words}
    others = [word for word in typed if key_of(word) not in own]
    tried = try_run([*others, *words], num_steps=num_steps, callbacks=CALLBACKS)
    curves = [tried.curve(f"speed/{metric}") for metric in ("tokens_per_second", "mfu_palm")]
    values = [sorted(value for _, value in curve) if tried.exit_code == EXIT_DONE else [] for curve in curves]
    speed, mfu = (each[len(each) // 2] if each else None for each in values)
    problem = None if speed else next(iter(tried.words.splitlines()[-1:]), "no step was timed")
    return RungSpeed(rung=name, words=" ".join(words), tokens_per_second=speed, mfu=mfu, problem=problem)


def _say(line: str) -> None:
    print(f"bench: {line}…", file=sys.stderr, flush=True)
