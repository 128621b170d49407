"""Where the time, FLOPs and money of a run went, read from its folder: events of the first rank, plan, status."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lmtrain.accounting.observed.plan_and_fact import PlanAndFact, explain
from lmtrain.accounting.observed.time_accounts import STEP_KINDS, Attempt, TimeBalance, balance, mean_devices, spent
from lmtrain.accounting.training_plan.utilization import kwh, usd
from lmtrain.errors import ConfigurationError
from lmtrain.report.ledger.biggest_lever import biggest_lever
from lmtrain.report.ledger.run_end import RunEnd, run_end
from lmtrain.report.ledger.save_pauses import SavePauses, save_pauses
from lmtrain.report.ledger.sent_bytes import SentBytes, sent_bytes
from lmtrain.report.ledger.slow_ranks import SlowRanks, rank_of, slow_ranks
from lmtrain.report.runs.attempts import READING, OwnSteps, own_steps, read_attempts
from lmtrain.report.runs.event_rows import event_rows
from lmtrain.report.runs.nearest import nearest_words
from lmtrain.report.runs.speeds import OVER, full_speed, logged_speed, speeds
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_log import Point, furthest, logged_points
from lmtrain.tracking.settled_status import settled_status
from lmtrain.tracking.timekeeping.events import ACCOUNTS


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """A run's accounts; None: not in its folder.

    Of a fork, all but `step` and `num_steps` are of its own steps. `steps` are those in the accounts, the last of a
    killed run is maybe in its log alone: `logged_step`.
    """

    name: str
    status: str
    steps: OwnSteps
    num_steps: int
    num_devices: int
    mean_devices: float
    time: TimeBalance
    device_seconds: float
    flops_per_token: dict[str, float]
    peak_flops: float | None
    peak_source: str
    usd_per_gpu_hour: float | None
    peak_doubt: str = ""
    measured_flops: float | None = None
    measured_doubt: str = ""
    device_watts: float | None = None
    beside_plan: PlanAndFact | None = None
    sent: SentBytes | None = None
    by_rank: SlowRanks | None = None
    saves: SavePauses | None = None
    single_device_tokens_per_second: float | None = None
    is_compiled: bool | None = None
    logged_tokens_per_second: float | None = None  # of whole steps, pauses left out
    logged_step: int = 0
    end: RunEnd | None = None  # with the passes and the budget of time, where they are known

    @property
    def step(self) -> int:
        """Return the last step, counted from the model's first one."""
        return max(self.steps.last, self.logged_step)

    @property
    def tokens(self) -> int:
        """Return its own tokens with loss: those of its speeds."""
        return self.steps.tokens

    @property
    def trained_share(self) -> float:
        """Return the share of its own tokens with loss."""
        return self.steps.trained_share

    @property
    def tokens_per_second(self) -> dict[str, float | None]:
        """Return tokens/s over computing time, over whole steps, and over the whole clock."""
        return speeds(self.tokens, self.time, of_steps=self.logged_tokens_per_second)

    def mfu(self, formula: str, over: str) -> float | None:
        """Return the utilization by a formula (palm, causal), over computing time, steps or the clock."""
        speed = self.tokens_per_second[over]
        return None if speed is None else self.mfu_at(speed, formula)

    def mfu_at(self, tokens_per_second: float, formula: str) -> float | None:
        """Return a speed's utilization by a formula; None where the peak is not known."""
        if self.peak_flops is None or formula not in self.flops_per_token:
            return None
        return self.flops_per_token[formula] * tokens_per_second / (self.peak_flops * self.mean_devices)

    @property
    def share_of_roofline(self) -> float | None:
        """Return computing's FLOP/s by PaLM's count over the measured FLOP/s of matrix products; None: unknown."""
        speed, per_token = self.tokens_per_second["computing"], self.flops_per_token.get("palm")
        if speed is None or per_token is None or not self.measured_flops:
            return None
        return speed * per_token / (self.measured_flops * self.mean_devices)

    @property
    def scaling_efficiency(self) -> float | None:
        """Return a device's speed in its steps as a share of its speed by itself; None: not measured."""
        seconds = sum(self.time.seconds.get(kind, 0.0) for kind in STEP_KINDS)
        alone = self.single_device_tokens_per_second
        return self.tokens / seconds / self.mean_devices / alone if seconds and alone else None

    @property
    def usd(self) -> float | None:
        """Return the cost of the devices for the whole clock, None without a price."""
        return self._usd(self.device_seconds)

    @property
    def projected_usd(self) -> float | None:
        """Return the cost of the whole run at the rate so far."""
        return self._usd(self._projected_device_seconds)

    @property
    def kwh(self) -> float | None:
        """Return the energy of the devices at their rated power over the whole clock: an upper bound."""
        return self._kwh(self.device_seconds)

    @property
    def projected_kwh(self) -> float | None:
        """Return the energy of the whole run if it goes on as it did."""
        return self._kwh(self._projected_device_seconds)

    @property
    def projected_seconds(self) -> float | None:
        """Return the clock of the whole run if its steps go on as they did; None before the first one."""
        return None if self._seconds_left is None else self.time.wall_seconds + self._seconds_left

    @property
    def _seconds_left(self) -> float | None:
        if self.status == "FINISHED":  # early stopping leaves steps out
            return 0.0
        end = self.end or RunEnd(num_steps=self.num_steps)
        steps = {"step": self.step, "steps_done": self.steps.num, "num_devices": self.num_devices}
        return end.seconds_left(self.time, **steps, device_seconds=self.device_seconds)

    @property
    def _projected_device_seconds(self) -> float | None:
        left = self._seconds_left
        return None if left is None else self.device_seconds + left * self.num_devices

    @property
    def biggest_lever(self) -> str | None:
        """Name the change that saves most of its time; None where none is known."""
        return biggest_lever(
            self.time,
            by_rank=self.by_rank,
            steps_done=self.steps.num,
            num_steps=self.num_steps - self.steps.first,
            is_compiled=self.is_compiled,
        )

    def _usd(self, device_seconds: float | None) -> float | None:
        if self.usd_per_gpu_hour is None or device_seconds is None:
            return None
        return usd(device_seconds, num_devices=1, usd_per_gpu_hour=self.usd_per_gpu_hour)

    def _kwh(self, device_seconds: float | None) -> float | None:
        if self.device_watts is None or device_seconds is None:
            return None
        return kwh(device_seconds, num_devices=1, device_watts=self.device_watts)

    def to_json(self) -> dict[str, Any]:
        """Return the accounts as plain numbers."""
        formulas, done = ("palm", "causal"), replace(self.steps, last=self.step)
        return {
            "run": self.name,
            "status": self.status,
            "step": self.step,
            "tokens": done.tokens,
            "all_tokens": done.all_tokens,
            "forked_from": self._forked_from(),
            "trained_share": self.trained_share,
            "attempts": self.time.num_attempts,
            "wall_seconds": self.time.wall_seconds,
            "seconds": dict(self.time.seconds),
            "goodput": self.time.goodput,
            "tokens_per_second": self.tokens_per_second,
            "mfu": {over: {formula: self.mfu(formula, over) for formula in formulas} for over in OVER},
            "peak": {"flops": self.peak_flops, "source": self.peak_source, "num_devices": self.mean_devices},
            "scaling_efficiency": self.scaling_efficiency,
            "share_of_measured_matmul": self.share_of_roofline,
            "doubts": {"peak": self.peak_doubt, "measured_matmul": self.measured_doubt},
            "cost": {"usd": self.usd, "projected_usd": self.projected_usd},
            "energy": {"kwh": self.kwh, "projected_kwh": self.projected_kwh},
            "plan_and_fact": None if self.beside_plan is None else self._plan_and_fact(self.beside_plan),
            "sent_bytes": None if self.sent is None else asdict(self.sent),
            "saves": None if self.saves is None else asdict(self.saves),
            "ranks": None if self.by_rank is None else self.by_rank.to_json(),
            "biggest_lever": self.biggest_lever,
        }

    def _forked_from(self) -> dict[str, Any] | None:
        fork, inherited = self.steps.fork, {"step": self.steps.first, "tokens": self.steps.inherited_tokens}
        return None if fork is None else {"run": fork.run, "is_gone": fork.is_gone, **inherited}

    def _plan_and_fact(self, found: PlanAndFact) -> dict[str, Any]:
        return {
            "seconds": {"planned": found.planned_seconds, "fact": found.seconds},
            "mfu_palm": {"planned": found.planned_mfu, "fact": found.mfu, "planned_by": found.mfu_source},
            "difference_seconds": found.difference_seconds,
            "reasons": dict(found.reasons),
        }


def read_ledger(folder: Path, *, points: Sequence[Point] | None = None) -> RunLedger:
    """Read a run's accounts, also while it runs; `points` are those of its log, where they have been read.

    Raises:
        ConfigurationError: The folder holds no run, or one from before there were accounts.
    """
    status = settled_status(folder)
    plan: dict[str, Any] = read_json(folder / "plan.json")
    if status is None or not (folder / "events" / "rank0.jsonl").exists():
        raise ConfigurationError(f"{folder} is not the folder of a run, as runs/NAME is.{nearest_words(folder)}")
    attempts = read_attempts(folder, is_running=status.status == "RUNNING")
    if not any(row["name"] in (ACCOUNTS, READING) for row in event_rows(folder / "events" / "rank0.jsonl")):
        raise ConfigurationError(f"{folder} has no accounts: the run had no callbacks.ledger, or did not start.")
    ledger = _ledger(folder.name, status.shown, plan, attempts, fork=read_fork(folder))
    points = logged_points(folder) if points is None else points
    speed = logged_speed(folder, points, attempts)
    return replace(
        _with_mean_peak(ledger, full_speed(points)),
        sent=sent_bytes(folder, plan),
        by_rank=_by_rank(folder),
        saves=save_pauses(folder),
        logged_tokens_per_second=None if speed is None else speed.tokens_per_second,
        logged_step=furthest(points).step,
    )


def _with_mean_peak(ledger: RunLedger, full: float | None) -> RunLedger:
    """Return it with the mean of its attempts' peaks where they differ, by the log's tokens/s at a utilization of 1."""
    per_token, newest = ledger.flops_per_token.get("palm"), ledger.peak_flops
    mean = full * per_token / ledger.mean_devices if full and per_token else newest
    if ledger.time.num_attempts < 2 or newest is None or mean is None or math.isclose(mean, newest, rel_tol=1e-3):
        return ledger
    source, beside = f"{ledger.peak_source}; mean of its attempts over their steps", ledger.beside_plan
    measured = mean if ledger.measured_flops == newest else ledger.measured_flops
    beside = None if beside is None else replace(beside, is_of_other_peak=True)
    return replace(ledger, peak_flops=mean, measured_flops=measured, peak_source=source, beside_plan=beside)


def _ledger(name: str, status: str, plan: dict[str, Any], attempts: list[Attempt], *, fork: Fork | None) -> RunLedger:
    steps, by_kind = own_steps(plan, attempts, fork), balance(attempts)
    num_devices = plan.get("batch", {}).get("num_ranks", 1)
    end = run_end(plan, last_step=steps.last)
    return RunLedger(
        name=name,
        status=status,
        steps=steps,
        num_steps=end.num_steps,
        end=end,
        num_devices=num_devices,
        mean_devices=mean_devices(attempts, num_devices=num_devices),
        time=by_kind,
        device_seconds=spent(attempts, num_devices=num_devices).device_seconds,
        flops_per_token=plan.get("flops_per_token", {}),
        peak_flops=plan.get("peak", {}).get("flops"),
        peak_source=plan.get("peak", {}).get("source", "unknown"),
        usd_per_gpu_hour=plan.get("cost", {}).get("usd_per_gpu_hour"),
        peak_doubt=plan.get("peak", {}).get("doubt", ""),
        measured_flops=plan.get("peak", {}).get("measured_flops"),
        measured_doubt=plan.get("peak", {}).get("measured_doubt", ""),
        single_device_tokens_per_second=plan.get("peak", {}).get("single_device_tokens_per_second"),
        device_watts=plan.get("energy", {}).get("device_watts"),
        is_compiled=plan.get("compiled"),
        beside_plan=_beside_plan(plan.get("time"), by_kind, steps, end),
    )


def _by_rank(folder: Path) -> SlowRanks | None:
    paths = sorted((folder / "events").glob("rank*.jsonl"), key=rank_of)
    return slow_ranks((rank_of(path), list(event_rows(path))) for path in paths) if len(paths) > 1 else None


def _beside_plan(
    planned: dict[str, Any] | None, spent: TimeBalance, steps: OwnSteps, end: RunEnd
) -> PlanAndFact | None:
    if planned is None:
        return None
    pace = {"step_seconds": planned["step_seconds"], "tokens_per_step": steps.tokens_per_step}
    return explain(
        spent,
        planned_seconds=steps.num * planned["step_seconds"],
        planned_setup_seconds=planned.get("setup_seconds", 0.0),
        planned_evaluation_seconds=end.passes_seconds(first=steps.first, last=steps.last, **pace),
        planned_mfu=planned["mfu_palm"],
        mfu_source=planned["source"],
    )
