"""A run's folder as one record, each of its files read once; a missing file leaves its facts unknown."""

import contextlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.time_accounts import (
    COMPUTE,
    Attempt,
    TimeBalance,
    balance,
    device_seconds,
    mean_devices,
)
from lmtrain.accounting.quantities import Unit, format_quantity
from lmtrain.accounting.training_plan.utilization import usd
from lmtrain.errors import DataError
from lmtrain.report.runs.attempts import LoggedSpeed, OwnSteps, logged_speed, own_steps, read_attempts
from lmtrain.report.runs.held_out import HeldOutScore, held_out_score
from lmtrain.report.visible_text import visible
from lmtrain.storage import foreign_json
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_folder import PROFILES, RunFolder, stored_name
from lmtrain.tracking.run_log import Point, furthest, logged_points, newest
from lmtrain.tracking.status import Status, settled_status
from lmtrain.tracking.sweep_file import SweepTrial, read_sweep
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts, best_of, list_checkpoints

REPORT_FILE: Final = "report.html"  # a run's page, in its folder
PRUNED: Final = "PRUNED"
BATCH: Final = "batch"  # the FLOPs of the real batches, by the documents of their rows


@dataclass(frozen=True)
class RunRecord:
    """A run as it is now; None or empty where its folder does not say.

    Time, speeds and money are of the run's own steps, without those of a parent run.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Return the run's name."""
        return stored_name(self.folder)

    @cached_property
    def points(self) -> list[Point]:
        """Return the points of its log."""
        return logged_points(self.folder)

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Return plan.json."""
        return read_json(self.folder / "plan.json")

    @cached_property
    def status(self) -> Status | None:
        """Return its state."""
        return settled_status(self.folder)

    @property
    def shown_status(self) -> str:
        """Return its state in people's words."""
        return "UNKNOWN" if self.status is None else shown_state(self.folder, self.status)

    @cached_property
    def job(self) -> dict[str, Any]:
        """Return the last command line's overrides and their composed config."""
        return newest_job(self.folder)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of the last command line."""
        return tuple(self.job.get("overrides", ()))

    @cached_property
    def fork(self) -> Fork | None:
        """Return where it left its parent run, None without one."""
        return read_fork(self.folder)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Return its attempts; the newest of a running one lasts until now."""
        return read_attempts(self.folder, is_running=self.status is not None and self.status.status == "RUNNING")

    @cached_property
    def own(self) -> OwnSteps:
        """Return its own steps, as far as its accounts have them."""
        tokens_per_step = self.plan.get("batch", {}).get("tokens_per_step", 0)
        return own_steps(self.attempts, self.fork, tokens_per_step=tokens_per_step)

    @cached_property
    def time(self) -> TimeBalance:
        """Return its time by kind."""
        return balance(self.attempts)

    @property
    def step(self) -> int:
        """Return the last step, counted from the model's first one; a killed run's log may know more than accounts."""
        return max(self.own.last, furthest(self.points).step)

    @property
    def num_steps(self) -> int:
        """Return the steps of the whole run."""
        return int(self.plan.get("horizon", {}).get("steps", self.step))

    @property
    def tokens(self) -> int:
        """Return the tokens trained on, with those of a parent run."""
        return self.step * self.own.tokens_per_step or furthest(self.points).tokens

    @cached_property
    def speed(self) -> LoggedSpeed | None:
        """Return its speed over whole steps."""
        return logged_speed(self.points, self.attempts, first_step=self.own.first)

    @property
    def tokens_per_second(self) -> float | None:
        """Return its tokens with loss per second over whole steps."""
        return self.speed.tokens_per_second if self.speed else None

    @property
    def loss_share(self) -> float:
        """Return the share of its tokens with loss."""
        return self.speed.loss_share if self.speed else 1.0

    @property
    def speeds(self) -> dict[str, float | None]:
        """Return tokens/s over computing time, over whole steps by the log, and over the whole clock."""
        computing, clock = self.time.seconds.get(COMPUTE, 0.0), self.time.wall_seconds
        over_computing, over_clock = (self.own.tokens / each if each else None for each in (computing, clock))
        return {"computing": over_computing, "steps": self.tokens_per_second, "clock": over_clock}

    @property
    def num_devices(self) -> int:
        """Return the planned devices."""
        return self.plan.get("batch", {}).get("num_ranks", 1)

    @cached_property
    def mean_devices(self) -> float:
        """Return the mean number of devices over the time of steps."""
        return mean_devices(self.attempts, num_devices=self.num_devices)

    def mfu(self, formula: str, over: str) -> float | None:
        """Return the utilization by a formula (palm, causal), over computing time, steps or the clock.

        That of the real batches, `batch`, counts tokens without loss too.
        None for one of several replica groups, whose steps have tokens of the others too.
        """
        if self.job.get("config", {}).get("trainer", {}).get("lighthouse"):
            return None
        speed, peak = self.speeds[over], self.plan.get("peak", {}).get("flops")
        flops = self.plan.get("flops_per_token", {}).get(formula)
        if formula == BATCH and self.own.flops and self.own.tokens:
            flops = self.own.flops / self.own.tokens
        return flops * speed / (peak * self.mean_devices) if speed and peak and flops else None

    @property
    def device_seconds(self) -> float:
        """Return the time of all devices together."""
        return device_seconds(self.attempts, num_devices=self.num_devices)

    @property
    def usd(self) -> float | None:
        """Return the cost of the devices for the whole clock, None without a price."""
        return self.usd_of(self.device_seconds) if self.device_seconds else newest(self.points, "cost/usd")

    def usd_of(self, device_seconds: float | None) -> float | None:
        """Return the cost of some time of devices, None without a price."""
        price = self.plan.get("cost", {}).get("usd_per_gpu_hour")
        if price is None or device_seconds is None:
            return None
        return usd(device_seconds, num_devices=1, usd_per_gpu_hour=price)

    def words_of_share(self, device_seconds: float, cost: float | None) -> str:
        """Compare the time and the dollars of a run that started from it with its own."""
        amounts: list[tuple[float | None, float | None, Unit]]
        amounts = [(device_seconds, self.device_seconds, "seconds"), (cost, self.usd, "usd")]
        known = [f"{format_quantity(a, unit)} of {format_quantity(b, unit)}" for a, b, unit in amounts if a and b]
        return f"{device_seconds / self.device_seconds:.1%} of the device time of {self.name}: {', '.join(known)}"

    @cached_property
    def held_out(self) -> HeldOutScore | None:
        """Return its newest score."""
        return held_out_score(self.points, self.plan, self.folder, split=split_measured(self.job), last_step=self.step)

    @cached_property
    def checkpoints(self) -> list[CheckpointFacts]:
        """Return its kept checkpoints, the newest last."""
        return list_checkpoints(self.folder / "checkpoints")

    @property
    def best(self) -> CheckpointFacts | None:
        """Return the kept checkpoint of the lowest score."""
        return best_of(self.checkpoints)

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Return the texts that it wrote, without lines cut short by a crash."""
        path, found = self.folder / "samples.jsonl", list[dict[str, Any]]()
        for line in path.read_bytes().splitlines() if path.is_file() and RunFolder(self.folder).owns(path) else ():
            with contextlib.suppress(ValueError):
                if isinstance(sample := foreign_json.parse(line), dict):
                    found.append(sample)
        return found


def base_run(init_from: object) -> RunRecord | None:
    """Return the run of an `init_from`, None where it names no run with accounts."""
    if not isinstance(init_from, str):
        return None
    start = Path(init_from)
    found = RunRecord(start.parent.parent if start.parent.name == "checkpoints" else start)
    return found if found.status is not None and found.device_seconds else None


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


def profile_lines(folder: Path) -> list[str]:
    """Return a run's profile: torch's tables of operators and of allocations, and the paths of the other files."""
    place, lines = folder / PROFILES, list[str]()
    for path in sorted(place.glob("*_rank*.txt")):
        lines += map(visible, foreign_json.read_bytes(path).decode(errors="replace").splitlines())
    return lines + [f"  {path}" for path in sorted(place.glob("*")) if path.suffix in (".gz", ".pickle")]
