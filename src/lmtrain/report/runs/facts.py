"""A finished run's facts as numbers, from its folder alone."""

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from lmtrain.accounting.observed.time_accounts import Attempt, TimeBalance, balance, spent
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.event_rows import last_step_of
from lmtrain.report.runs.held_out_score import HeldOutScore, held_out_score
from lmtrain.report.kept_flags import kept_flags
from lmtrain.report.runs.attempts import OwnSteps, own_steps, read_attempts
from lmtrain.report.runs.speeds import full_speed, logged_speed, speeds
from lmtrain.report.runs.unkept_best import UnkeptBest, unkept_best
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.tracking.run_log import Point, furthest, logged_points, newest
from lmtrain.tracking.settled_status import settled_status
from lmtrain.tracking.timekeeping.events import EARLY_STOPPING, STOPPING_AT_THE_END
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, best_of, list_checkpoints

REPORT_FILE = "report.html"  # the whole page, in the run's folder


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run at its end; None or empty where its folder does not tell.

    `seconds` are those of its timed steps, pauses left out; `tokens_per_second` counts tokens with loss, a
    `loss_share` of all tokens; `speeds` has it beside that of computing and that of the clock. Of a fork's steps and
    tokens those of the run it left are none of its time and speeds.
    """

    folder: Path
    name: str
    step: int
    tokens: int
    seconds: float | None
    tokens_per_second: float | None
    loss_share: float
    mfu_palm: float | None
    usd: float | None
    held_out: HeldOutScore | None
    sample: dict[str, Any]
    last: CheckpointFacts | None
    best: CheckpointFacts | None  # of those kept
    mlflow_run_id: str | None
    budget_key: str
    budget: float
    lr: float | None
    overrides: tuple[str, ...]
    other_budgets: Mapping[str, float] = field(default_factory=dict[str, float])
    time: TimeBalance = field(default_factory=TimeBalance)
    speeds: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    own: OwnSteps = field(default_factory=OwnSteps)
    fork: Fork | None = None  # its start in another run
    skipped_steps: int = 0
    unkept_best: UnkeptBest | None = None  # a validation better than at all of them
    program: str = "python train.py"
    root: str = "runs"  # of all runs, as typed
    config_dir: str | None = None  # as typed
    allowed: tuple[str, ...] = ()  # targets of --allow-target
    ended: str = "FINISHED"  # its state
    reason: str | None = None  # of a failure, in its own words
    early_stop: str | None = None  # the event of callbacks.early_stopping at its last step
    peak_doubt: str = ""  # of MFU's divisor

    @property
    def budgets(self) -> dict[str, float]:
        """Return the amounts of all budgets by key, the deciding one first."""
        return {self.budget_key: self.budget, **self.other_budgets}

    @property
    def mfu_by(self) -> str:
        """Name the formula of MFU, with the doubt about its peak."""
        return "PaLM, peak measured on a busy machine" if self.peak_doubt else "PaLM"


def read_run(folder: Path) -> RunFacts:
    """Read a run's folder; a missing file leaves its facts open."""
    points, plan, status = logged_points(folder), read_json(folder / "plan.json"), read_json(folder / "status.json")
    checkpoints, job, fork = list_checkpoints(folder / "checkpoints"), newest_job(folder), read_fork(folder)
    last, settled = furthest(points), settled_status(folder)
    attempts = read_attempts(folder, is_running=settled is not None and settled.status == "RUNNING")
    speed, own = logged_speed(folder, points, attempts), own_steps(plan, attempts, fork)
    time_spent, of_steps = balance(attempts), speed.tokens_per_second if speed else None
    (budget_key, planned), budgets = _budget(plan), _typed_budgets(job.get("config", {}))
    return RunFacts(
        folder=folder,
        name=stored_name(folder),
        step=last.step,
        tokens=last.tokens,
        seconds=speed.seconds if speed else None,
        tokens_per_second=of_steps,
        loss_share=speed.loss_share if speed else 1.0,
        mfu_palm=of_steps / full if of_steps and (full := full_speed(points)) else None,
        usd=_usd(plan, attempts, points),
        held_out=held_out_score(points, plan, folder, split=split_measured(job), last_step=last.step),
        sample=_last_sample(folder / "samples.jsonl"),
        last=checkpoints[-1] if checkpoints else None,
        best=best_of(checkpoints),
        unkept_best=unkept_best(points, checkpoints, job.get("config", {})),
        mlflow_run_id=cast("str | None", status.get("mlflow_run_id")),
        budget_key=budget_key,
        budget=budgets.pop(budget_key, planned),
        lr=_lr_to_type(job.get("config", {})),
        other_budgets=budgets,
        time=time_spent,
        speeds=speeds(own.tokens, time_spent, of_steps=of_steps),
        own=own,
        fork=fork,
        skipped_steps=int(newest(points, "train/skipped_steps") or 0),
        **_as_typed(job),
        ended=settled.shown if settled else RunFacts.ended,
        peak_doubt=_peak_doubt(plan),
        reason=str(reason) if (reason := status.get("reason")) else None,
        early_stop=_early_stop(folder, last.step),
    )


def _as_typed(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "overrides": tuple(job.get("overrides", ())),
        "program": str(job.get("program", RunFacts.program)),
        "config_dir": found if isinstance(found := job.get("config_dir"), str) else None,
        "root": _root(job.get("config", {})),
    }


def _early_stop(folder: Path, step: int) -> str | None:
    events = (EARLY_STOPPING, STOPPING_AT_THE_END)
    return next((event for event in events if last_step_of(folder, event) == step), None)


def _usd(plan: dict[str, Any], attempts: Sequence[Attempt], points: Sequence[Point]) -> float | None:
    price, num_devices = plan.get("cost", {}).get("usd_per_gpu_hour"), plan.get("batch", {}).get("num_ranks", 1)
    device_seconds = spent(attempts, num_devices=num_devices).device_seconds
    if price is None or not device_seconds:
        return newest(points, "cost/usd")
    return usd(device_seconds, num_devices=1, usd_per_gpu_hour=price)


def _root(config: dict[str, Any]) -> str:
    run = config.get("run")  # anybody's file
    return str(run.get("root", RunFacts.root)) if isinstance(run, dict) else RunFacts.root


def _lr_to_type(config: dict[str, Any]) -> float | None:
    """Return the learning rate to type for this run again: the base's, where a rule of scaling derived it."""
    scaling, optimizer = config.get("scaling"), config.get("optimizer")  # anybody's file
    base = scaling.get("base") if isinstance(scaling, dict) else None
    derived = base.get("optimizer.lr") if isinstance(base, dict) else None
    found = derived if derived is not None else optimizer.get("lr") if isinstance(optimizer, dict) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def command(facts: RunFacts, *replaced: str, sweep: bool = False) -> str:
    """Return this run's command line with some words replaced: NAME=VALUE, or NAME= to leave it out.

    A name's own keys are replaced with it; of a key typed twice the last word is kept, which is in force.
    """
    keys = tuple(f"{word.partition('=')[0]}." for word in replaced)
    in_force = {word.partition("=")[0]: word for word in facts.overrides}.values()
    kept = [word for word in in_force if not f"{word.partition('=')[0].lstrip('+~')}.".startswith(keys)]
    flags = [*(["-m"] if sweep else []), *kept_flags(config_dir=facts.config_dir, allowed=facts.allowed)]
    words = [*facts.program.split(), *flags, *kept]
    return shlex.join([*words, *(word for word in replaced if not word.endswith("="))])


def split_measured(job: dict[str, Any]) -> str:
    """Return the run's held-out split."""
    validation: dict[str, Any] = job.get("config", {}).get("callbacks", {}).get("validation") or {}
    return validation.get("split", "validation")


def _last_sample(path: Path) -> dict[str, Any]:
    """Return the last whole line, nothing where there is none."""
    for line in reversed(path.read_bytes().splitlines() if path.is_file() else []):
        with contextlib.suppress(ValueError):
            if isinstance(sample := foreign_json.parse(line), dict):
                return sample
    return {}


def _peak_doubt(plan: dict[str, Any]) -> str:
    return str(plan.get("peak", {}).get("doubt", ""))


def _budget(plan: dict[str, Any]) -> tuple[str, float]:
    """Return the key and the amount of a run's budget."""
    horizon = plan.get("horizon", {})
    key = str(horizon.get("limited_by", "tokens"))
    if key == "tokens_per_parameter":
        return f"budget.{key}", horizon["tokens"] / plan["parameters"]["active"]
    if key in ("hours", "usd"):
        hours = float(horizon["seconds"]) / 3600
        price = float(plan["cost"]["usd_per_gpu_hour"] or 0) * plan["batch"]["num_ranks"]
        return f"budget.{key}", hours if key == "hours" else hours * price
    return f"budget.{key}", float(horizon.get(key, 0))


def _typed_budgets(config: dict[str, Any]) -> dict[str, float]:
    """Return the amounts of a run's budgets by key: the least of all ends a run, at the first step past it."""
    budget = config.get("budget")  # anybody's file
    found: dict[str, float] = {}
    for name, amount in budget.items() if isinstance(budget, dict) else ():
        key = f"budget.{name}"
        if not str(name).startswith("_") and amount is not None:
            with contextlib.suppress(ConfigurationError):
                found[key] = float(parse_quantity(amount, key))
    return found


def newest_job(folder: Path) -> dict[str, Any]:
    """Return the last command line's overrides and their composed config."""
    attempt = RunFolder(folder).accepted_attempt()
    job = read_json(attempt / "job.json") if attempt else {}
    return job if isinstance(job.get("config", {}), dict) else {}
