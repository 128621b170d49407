"""`lmtrain tune lr OVERRIDES`: train the config some steps at ever higher learning rates, and suggest one."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.lr_range import LrRange, judge
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.errors import EXIT_DONE, ConfigurationError, EnvironmentProblem
from lmtrain.run.compose.flag_parser import FlagParser
from lmtrain.run.execution.tried_run import TriedRun, checked_config, kept, try_run
from lmtrain.run.run_config import RunConfig

NO_SUGGESTION: Final = 1
CALLBACKS: Final = ("step_log", "divergence", "token_budget")
LEAST_STEPS: Final = 30


def tune_lr(words: list[str], *, program: str) -> int:
    """Make a range test, write its plot, and print the command; 1 where there is nothing to suggest.

    Raises:
        ConfigurationError: The config or a flag is wrong.
        EnvironmentProblem: The machine could not train it.
    """
    asked, others = _parser(program).taken(words)
    _require_range(asked)
    typed = kept(others, also=("schedule", "spikes"))
    config = checked_config(others)
    rates = lr_settings(config.optimizer.values)
    sweep = ["schedule=range_test", f"schedule.lowest={asked.lowest:g}", f"schedule.highest={asked.highest:g}"]
    _tell_start(others, num_steps=asked.steps)
    tried = try_run([*typed, *sweep], num_steps=asked.steps, callbacks=CALLBACKS, tell=_tell)
    if len(tried.curve(TRAIN_LOSS)) == 0:
        raise EnvironmentProblem(f"the range test did not train (exit code {tried.exit_code}): {tried.words}")
    found = judge(shares_of(tried, rates["lr"]), num_asked=asked.steps)
    rates = rates_to_type(config, rates)
    command = shlex.join(["lmtrain", "train", *_without(others, rates), *_words(rates, found.steepest)])
    from lmtrain.report.tuning.lr_range_page import lr_range_lines, write_lr_range

    plot = write_lr_range(found, lr=rates["lr"], folder=Path(config.run.root) / ".tune", words=typed)
    if asked.json:
        print(json.dumps(_to_json(found, rates, command=command, plot=plot)))
    else:
        print("\n".join(lr_range_lines(found, lr=rates["lr"], command=command, plot=plot)))
    return EXIT_DONE if found.steepest else NO_SUGGESTION


def lr_settings(optimizer: Any) -> dict[str, float]:
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
        raise ConfigurationError("optimizer.lr is not a number above 0: there is no learning rate to tune.")
    return {"lr": rates["lr"], **rates}


def rates_to_type(config: RunConfig, rates: dict[str, float]) -> dict[str, float]:
    """Return rates as they are typed: the base's, where a rule of scaling multiplies them."""
    scaling = config.scaling
    return {name: scaling.to_type(f"optimizer.{name}", rate) if scaling else rate for name, rate in rates.items()}


def shares_of(tried: TriedRun, lr: float) -> list[tuple[float, float]]:
    """Return each step's learning rate as a share of the config's, with its loss."""
    rates = dict(tried.curve("train/lr"))
    return [(rates[step] / lr, loss) for step, loss in tried.curve(TRAIN_LOSS) if step in rates]


def _tell_start(words: list[str], *, num_steps: int) -> None:
    budget = [word for word in words if word.lstrip("+").startswith("budget")]
    later = f"; {' '.join(budget)} is of the command at the end alone" if budget else ""
    _tell(f"{num_steps} steps of training at rising learning rates (--steps){later}")


def _tell(line: str) -> None:
    print(f"lmtrain tune lr: {line}", file=sys.stderr, flush=True)


def _require_range(asked: argparse.Namespace) -> None:
    if asked.steps < LEAST_STEPS:
        raise ConfigurationError(f"--steps={asked.steps} is too short for a curve; nearest valid: {LEAST_STEPS}.")
    if not 0 < asked.lowest < asked.highest:
        raise ConfigurationError(
            f"--lowest={asked.lowest:g} is not above 0 and below --highest={asked.highest:g}; nearest valid: 0.001 "
            "and 100, shares of the config's learning rate."
        )


def _without(words: list[str], rates: dict[str, float]) -> list[str]:
    return [word for word in words if word.lstrip("+").partition("=")[0] not in {f"optimizer.{name}" for name in rates}]


def _words(rates: dict[str, float], share: float | None) -> list[str]:
    return [] if share is None else [f"optimizer.{name}={share * rate:.3g}" for name, rate in rates.items()]


def _to_json(found: LrRange, rates: dict[str, float], *, command: str, plot: Path) -> dict[str, Any]:
    lr = rates["lr"]
    at = {name: None if share is None else share * lr for name, share in (
        ("suggested_lr", found.steepest), ("lowest_loss_lr", found.lowest), ("broke_lr", found.broke))}  # fmt: skip
    curve = [[share * lr, loss] for share, loss in found.smoothed]
    told = command if found.steepest else None
    return {**at, "command": told, "problem": found.problem, "noise": found.noise, "plot": str(plot), "curve": curve}


def _parser(program: str) -> FlagParser:
    parser = FlagParser(prog=f"{program} lr", allow_abbrev=False, add_help=False)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lowest", type=float, default=1e-3)
    parser.add_argument("--highest", type=float, default=100.0)
    parser.add_argument("--json", action="store_true")
    return parser
