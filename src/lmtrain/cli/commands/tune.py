"""`lmtrain tune lr`: a learning rate found by a range test, some steps of the config itself at ever higher rates."""

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.lr_range import LrRange, judge
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.child_process import python_command, python_environment
from lmtrain.cli.help import HELP_FLAGS, verb_page
from lmtrain.errors import EXIT_DONE, EXIT_NO, ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.arguments import parse_arguments
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.compose.paths import key_of, without
from lmtrain.run.run_config import RunConfig
from lmtrain.tracking.run_log import logged_points

LEAST_STEPS: Final = 30  # for a curve
NAME: Final = "tried"
REPLACED: Final = (
    *("budget", "callbacks", "hparams_search", "logger", "profiler", "resume", "schedule", "spikes"),
    *("run.log_every_steps", "run.name", "run.root"),
)
WORDS: Final = (
    *("budget=steps", "callbacks=[step_log,divergence,token_budget]", "logger=none", "resume=never"),
    *("run.log_every_steps=1", f"run.name={NAME}", "schedule=range_test"),
)
LAST_LINES: Final = 3


def tune(words: list[str], *, program: str = "lmtrain tune") -> int:
    """Make a range test, write its plot, and print the command to train with; 1 where there is nothing to suggest.

    Raises:
        ConfigurationError: The config or a flag is wrong.
        EnvironmentProblem: The machine could not train it.
    """
    if HELP_FLAGS & set(words) or not words:
        print(verb_page("tune", program=program))
        return EXIT_DONE
    if words[0] != "lr":
        auto = "; batch.micro_batch_sequences=auto fits the device" if words[0] == "batch" else ""
        raise ConfigurationError(f"{program} {words[0]}: must be lr{auto}.")
    parser = FlagParser(prog=f"{program} lr", allow_abbrev=False, add_help=False)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lowest", type=float, default=1e-3)
    parser.add_argument("--highest", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    asked, others = parser.taken(words[1:])
    if asked.steps < LEAST_STEPS:
        raise ConfigurationError(f"--steps: must be at least {LEAST_STEPS}, got {asked.steps}.")
    if not 0 < asked.lowest < asked.highest:
        raise ConfigurationError(
            f"--lowest: must be above 0 and below --highest={asked.highest:g}, got {asked.lowest:g}."
        )
    config, typed = checked_config(others), without(others, REPLACED)
    rates = lr_settings(config.optimizer.values)
    ends = [f"budget.steps={asked.steps}", f"schedule.lowest={asked.lowest:g}", f"schedule.highest={asked.highest:g}"]
    print(f"{asked.steps} steps at rising learning rates; a typed budget is not used", file=sys.stderr, flush=True)
    points = [(lr / rates["lr"], loss) for lr, loss in trained([*typed, *WORDS, *ends])]
    found = judge(points, num_asked=asked.steps)
    if config.scaling:  # a rule multiplies the rates: the base's are typed
        rates = {name: config.scaling.to_type(f"optimizer.{name}", rate) for name, rate in rates.items()}
    settings = {f"optimizer.{name}": (found.steepest or 0.0) * rate for name, rate in rates.items()}
    changed = [f"{key}={rate:.3g}" for key, rate in settings.items()] if found.steepest else []
    command = shlex.join(["lmtrain", "train", *(word for word in others if key_of(word) not in settings), *changed])
    from lmtrain.report.lr_range_page import lr_range_lines, write_lr_range

    plot = write_lr_range(found, lr=rates["lr"], folder=Path(config.run.root) / ".tune", words=typed)
    if asked.json:
        print(json.dumps(_to_json(found, rates["lr"], command=command, plot=plot)))
    else:
        print("\n".join(lr_range_lines(found, lr=rates["lr"], command=command, plot=plot)))
    return EXIT_DONE if found.steepest else EXIT_NO


def checked_config(words: Sequence[str]) -> RunConfig:
    """Compose and check the config here first: a wrong one is refused at once."""
    from lmtrain.run.gate import checked_configs

    found = checked_configs(parse_arguments(words))
    if len(found) != 1:
        raise ConfigurationError("this command tries one config; leave -m and --cfg out.")
    return found[0][0]


def trained(words: Sequence[str]) -> list[tuple[float, float]]:
    """Train in a process and a folder of their own; return the learning rate and the loss of each step.

    Raises:
        EnvironmentProblem: It did not train.
    """
    with tempfile.TemporaryDirectory(prefix="lmtrain-tune-") as folder:
        ended = subprocess.run(
            python_command("-m", "lmtrain.cli", "train", *words, f"run.root={folder}"),
            env=python_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        points = [point.metrics for point in logged_points(Path(folder) / NAME)]
    found = [(each["train/lr"], each[TRAIN_LOSS]) for each in points if {"train/lr", TRAIN_LOSS} <= each.keys()]
    if not found:
        last = "\n".join(ended.stdout.strip().splitlines()[-LAST_LINES:])
        raise EnvironmentProblem(f"the range test did not train (exit code {ended.returncode}): {last}")
    return found


def lr_settings(optimizer: Mapping[str, Any]) -> dict[str, float]:
    """Return the optimizer's learning rates by name, `lr` first; a range test moves them together.

    Raises:
        ConfigurationError: It has no `lr`.
    """
    rates = {
        name: float(value)
        for name, value in optimizer.items()
        if (name == "lr" or name.endswith("_lr")) and isinstance(value, int | float) and value > 0
    }
    if "lr" not in rates:
        raise ConfigurationError("optimizer.lr must be a number above 0: nothing to tune.")
    return {"lr": rates["lr"], **rates}


def _to_json(found: LrRange, lr: float, *, command: str, plot: Path) -> dict[str, Any]:
    shares = {"suggested_lr": found.steepest, "lowest_loss_lr": found.lowest, "broke_lr": found.broke}
    return {
        **{name: None if share is None else share * lr for name, share in shares.items()},
        "command": command if found.steepest else None,
        "problem": found.problem,
        "noise": found.noise,
        "plot": str(plot),
        "curve": [[share * lr, loss] for share, loss in found.smoothed],
    }
