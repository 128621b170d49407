"""A run's facts as numbers, from its folder alone; a missing file leaves its facts unknown."""

import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE
from lmtrain.accounting.observed.time_accounts import Attempt, TimeBalance, balance, spent
from lmtrain.accounting.quantities import parse_quantity
from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.kept_flags import kept_flags
from lmtrain.report.runs.attempts import OwnSteps, full_speed, last_step_of, logged_speed, own_steps, read_attempts, speeds
from lmtrain.report.runs.held_out import HeldOutScore, held_out_score
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_folder import RunFolder, stored_name
from lmtrain.tracking.run_log import Point, furthest, held_out_bytes, logged_points, newest
from lmtrain.tracking.status import settled_status
from lmtrain.tracking.status import Status
from lmtrain.tracking.sweep_file import SweepTrial, read_sweep
from lmtrain.tracking.events import EARLY_STOPPING, STOPPING_AT_THE_END
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, best_of, list_checkpoints

REPORT_FILE: Final = "report.html"  # a run's page, in its folder
PRUNED: Final = "PRUNED"
CHECKPOINT: Final = "callbacks.checkpoint"


@dataclass(frozen=True, kw_only=True)
class UnkeptBest:
    """A score below those of all kept checkpoints, its step, and the overrides that would have kept it."""

    bits_per_byte: float
    step: int
    words: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.bits_per_byte:.3f} at step {self.step:,}, not kept: {self.words} keeps more"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as it is now; None or empty for what its folder does not say.

    `seconds` are those of its timed steps, without pauses; `tokens_per_second` counts tokens with loss, a `loss_share`
    of all tokens; `speeds` has it next to those of computing and of the clock. Time and speeds are of the run's own
    steps, without those of a parent run.
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
    fork: Fork | None = None
    skipped_steps: int = 0
    unkept_best: UnkeptBest | None = None
    program: str = "python train.py"
    root: str = "runs"  # of all runs, as typed
    config_dir: str | None = None  # as typed
    allowed: tuple[str, ...] = ()  # targets of --allow-target
    ended: str = "FINISHED"  # its state
    reason: str | None = None  # of a failure
    early_stop: str | None = None  # the event of callbacks.early_stopping at its last step
    peak_doubt: str = ""  # of the peak that MFU divides by

    @property
    def budgets(self) -> dict[str, float]:
        """Return the amounts of all budgets by key, the deciding one first."""
        return {self.budget_key: self.budget, **self.other_budgets}

    @property
    def mfu_by(self) -> str:
        """Name the formula of MFU, and a doubt about its peak."""
        return "PaLM, peak measured on a busy machine" if self.peak_doubt else "PaLM"


def read_run(folder: Path) -> RunFacts:
    """Read a run's folder."""
    points, status = logged_points(folder), read_json(folder / "status.json")
    plan: dict[str, Any] = read_json(folder / "plan.json")
    checkpoints, job, fork = list_checkpoints(folder / "checkpoints"), newest_job(folder), read_fork(folder)
    config = job.get("config", {})
    last, settled = furthest(points), settled_status(folder)
    attempts = read_attempts(folder, is_running=settled is not None and settled.status == "RUNNING")
    speed, own = logged_speed(folder, points, attempts), own_steps(plan, attempts, fork)
    time_spent, of_steps = balance(attempts), speed.tokens_per_second if speed else None
    (budget_key, planned), budgets = _budget(plan), _typed_budgets(config)
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
        unkept_best=unkept_best(points, checkpoints, config),
        mlflow_run_id=cast("str | None", status.get("mlflow_run_id")),
        budget_key=budget_key,
        budget=budgets.pop(budget_key, planned),
        lr=_typed_lr(config),
        other_budgets=budgets,
        time=time_spent,
        speeds=speeds(own.tokens, time_spent, of_steps=of_steps),
        own=own,
        fork=fork,
        skipped_steps=int(newest(points, "train/skipped_steps") or 0),
        **_command_line(job),
        ended=settled.shown if settled else RunFacts.ended,
        peak_doubt=str(plan.get("peak", {}).get("doubt", "")),
        reason=str(reason) if (reason := status.get("reason")) else None,
        early_stop=_early_stop(folder, last.step),
    )


def _command_line(job: dict[str, Any]) -> dict[str, Any]:
    run = job.get("config", {}).get("run")
    return {
        "overrides": tuple(job.get("overrides", ())),
        "program": str(job.get("program", RunFacts.program)),
        "config_dir": found if isinstance(found := job.get("config_dir"), str) else None,
        "root": str(run.get("root", RunFacts.root)) if isinstance(run, dict) else RunFacts.root,
    }


def newest_job(folder: Path) -> dict[str, Any]:
    """Return the last command line's overrides and their composed config."""
    attempt = RunFolder(folder).accepted_attempt()
    job = read_json(attempt / "job.json") if attempt else {}
    return job if isinstance(job.get("config", {}), dict) else {}


def split_measured(job: dict[str, Any]) -> str:
    """Return the run's held-out split."""
    validation: dict[str, Any] = job.get("config", {}).get("callbacks", {}).get("validation") or {}
    return validation.get("split", "validation")


def shown_state(folder: Path, status: Status) -> str:
    """Return a run's state, PRUNED if its search has stopped it."""
    trial = trial_of(folder) if status.is_clean_stop else None
    return PRUNED if trial and trial.state == "pruned" else status.shown


def trial_of(folder: Path) -> SweepTrial | None:
    """Return the trial of a search that a run belongs to, None for another run."""
    try:
        sweep = read_sweep(folder.parent)
    except DataError:  # reported by the commands that read the sweep itself
        return None
    found = (trial for trial in (sweep.trials if sweep else []) for run in trial.runs if run.folder == folder.name)
    return next(found, None)


def unkept_best(
    points: Sequence[Point], checkpoints: Sequence[CheckpointFacts], config: dict[str, Any]
) -> UnkeptBest | None:
    """Return the best score on the bytes of the newest one if no checkpoint of its step is kept."""
    scored = [point for point in points if BITS_PER_BYTE in point.metrics]
    comparable = [point for point in scored if held_out_bytes(point) == held_out_bytes(scored[-1])]
    best = min(comparable, key=lambda point: point.metrics[BITS_PER_BYTE], default=None)
    kept = [facts.metrics[BITS_PER_BYTE] for facts in checkpoints if BITS_PER_BYTE in facts.metrics]
    if best is None or not best.step or not kept or best.metrics[BITS_PER_BYTE] >= min(kept):
        return None
    if best.step in {facts.step for facts in checkpoints}:
        return None  # its checkpoint was written before the score
    interval = math.gcd(*(point.step for point in scored if point.step <= best.step))
    callbacks = config.get("callbacks")
    checkpoint = callbacks.get("checkpoint") if isinstance(callbacks, dict) else None
    never_kept = isinstance(checkpoint, dict) and checkpoint.get("keep_best") is False
    words = [f"{CHECKPOINT}.every_steps={interval}", *([f"{CHECKPOINT}.keep_best=true"] if never_kept else [])]
    return UnkeptBest(bits_per_byte=best.metrics[BITS_PER_BYTE], step=best.step, words=" ".join(words))


def command(facts: RunFacts, *replaced: str, sweep: bool = False) -> str:
    """Return this run's command line with some overrides replaced: NAME=VALUE, or NAME= to leave it out.

    The keys below a name are replaced with it; of a key typed twice the last one is kept, which is in force.
    """
    keys = tuple(f"{word.partition('=')[0]}." for word in replaced)
    in_force = {word.partition("=")[0]: word for word in facts.overrides}.values()
    kept = [word for word in in_force if not f"{word.partition('=')[0].lstrip('+~')}.".startswith(keys)]
    flags = [*(["-m"] if sweep else []), *kept_flags(config_dir=facts.config_dir, allowed=facts.allowed)]
    words = [*facts.program.split(), *flags, *kept]
    return shlex.join([*words, *(word for word in replaced if not word.endswith("="))])


def _early_stop(folder: Path, step: int) -> str | None:
    events = (EARLY_STOPPING, STOPPING_AT_THE_END)
    return next((event for event in events if last_step_of(folder, event) == step), None)


def _usd(plan: dict[str, Any], attempts: Sequence[Attempt], points: Sequence[Point]) -> float | None:
    price, num_devices = plan.get("cost", {}).get("usd_per_gpu_hour"), plan.get("batch", {}).get("num_ranks", 1)
    device_seconds = spent(attempts, num_devices=num_devices).device_seconds
    if price is None or not device_seconds:
        return newest(points, "cost/usd")
    return usd(device_seconds, num_devices=1, usd_per_gpu_hour=price)


def _typed_lr(config: dict[str, Any]) -> float | None:
    """Return the learning rate to type for this run again: the base's, if a scaling rule derived it."""
    scaling, optimizer = config.get("scaling"), config.get("optimizer")
    base = scaling.get("base") if isinstance(scaling, dict) else None
    derived = base.get("optimizer.lr") if isinstance(base, dict) else None
    found = derived if derived is not None else optimizer.get("lr") if isinstance(optimizer, dict) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _last_sample(path: Path) -> dict[str, Any]:
    """Return the last whole line, nothing if there is none."""
    for line in reversed(path.read_bytes().splitlines() if path.is_file() else []):
        with contextlib.suppress(ValueError):
            if isinstance(sample := foreign_json.parse(line), dict):
                return sample
    return {}


def _budget(plan: dict[str, Any]) -> tuple[str, float]:
    """Return the key and the amount of the budget that ends a run."""
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
    """Return the amounts of a run's budgets by key; the first one spent ends the run."""
    budget = config.get("budget")
    found: dict[str, float] = {}
    for name, amount in budget.items() if isinstance(budget, dict) else ():
        key = f"budget.{name}"
        if not str(name).startswith("_") and amount is not None:
            with contextlib.suppress(ConfigurationError):
                found[key] = float(parse_quantity(amount, key))
    return found
