"""The ledger of a run: where its time, FLOPs and money went, by its folder's events, plan and log."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.plan_vs_actual import PlanAndFact, explain
from lmtrain.accounting.observed.time_accounts import (
    COMPUTE,
    LEVERS,
    STEP_KINDS,
    Attempt,
    Passes,
    TimeBalance,
    balance,
    kind_words,
    mean_devices,
    spent,
)
from lmtrain.accounting.training_plan.plan_parts import EvaluationPlan
from lmtrain.accounting.training_plan.utilization import kwh, usd
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.attempts import (
    OVER,
    READING,
    OwnSteps,
    event_rows,
    first_rank_events,
    full_speed,
    logged_speed,
    own_steps,
    read_attempts,
    speeds,
)
from lmtrain.report.runs.find import nearest_words
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.events import ACCOUNTS, TRACED
from lmtrain.tracking.fork import Fork, read_fork
from lmtrain.tracking.run_log import Point, furthest, logged_points
from lmtrain.tracking.status import settled_status

FORMULAS: Final = ("palm", "causal")
COMMUNICATION: Final = "communication"  # waits for slower ranks are on this account
SENT: Final = "communication/sent_bytes"
SAVED: Final = tuple(f"checkpoint/{name}_seconds" for name in ("copy", "wait", "write"))
SLOW: Final = 1.1  # times the median of the ranks
MOST_RANKS: Final = 8  # shown
# What compiling saves of an eager run's computing, and how long it takes the first time: measured in
# benchmarks/results/compile_zen4_2cores_202611.md (20% by block, 32% for a whole model).
EAGER_SAVES: Final = 0.2
COMPILING_SECONDS: Final = 61.0
EAGER_ADVICE: Final = "compile=auto takes a minute or two once, and saves a fifth or more of each step"
RANK_ADVICE: Final = "the others wait for {}; run `lmtrain doctor` on that machine"


@dataclass(frozen=True)
class SavePauses:
    """Seconds of all checkpoints: training paused to copy and to wait; `written` may run next to training."""

    num_saves: int
    copied: float
    waited: float
    written: float


@dataclass(frozen=True, kw_only=True)
class SentBytes:
    """Bytes of deltas that the first worker sent (DiLoCo), and those planned for the same steps."""

    counted: float
    planned: float


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Seconds of a step: a rank's computing, its waits for data, and for other ranks."""

    rank: int
    computing: float
    data_wait: float
    waiting: float

    @property
    def own(self) -> float:
        """Return the seconds of its own work, which the others wait for."""
        return self.computing + self.data_wait


@dataclass(frozen=True, kw_only=True)
class SlowRanks:
    """The ranks of a run, slowest first, over `num_steps` traced steps."""

    ranks: tuple[RankTime, ...]
    num_steps: int

    @property
    def median(self) -> float:
        """Return the median of the ranks' own seconds."""
        return statistics.median_low([one.own for one in self.ranks])

    @property
    def slow(self) -> list[RankTime]:
        """Return the ranks with more than 1.1 times the median's own time."""
        return [one for one in self.ranks if one.own > SLOW * self.median]

    @property
    def slow_words(self) -> str:
        """Name the slow ranks, each with the part of its time that is too long."""
        usual = statistics.median_low([other.data_wait for other in self.ranks])
        return ", ".join(
            f"rank {one.rank} ({'data wait' if one.data_wait - usual > (one.own - self.median) / 2 else 'computing'})"
            for one in self.slow[:MOST_RANKS]
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain numbers."""
        return {
            "num_ranks": len(self.ranks),
            "traced_steps": self.num_steps,
            "median_own_seconds": self.median,
            "slow": [one.rank for one in self.slow],
            "slowest": [asdict(one) | {"own": one.own} for one in self.ranks[:MOST_RANKS]],
        }


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end that a plan has: a last step, passes over held-out text, the seconds of a budget; None: none, or unknown.

    A budget of dollars `counts_devices`: an attempt on twice the devices spends it twice as fast.
    """

    num_steps: int
    evaluation: EvaluationPlan | None = None
    budget_seconds: float | None = None
    counts_devices: bool = False

    def seconds_left(
        self, time: TimeBalance, *, step: int, steps_done: int, device_seconds: float, num_devices: int
    ) -> float | None:
        """Return how long the run continues from a step at its pace so far; None before its first one."""
        used = device_seconds / num_devices if self.counts_devices else time.wall_seconds
        passes = None
        if self.evaluation is not None:
            done, left = self.evaluation.passes_by, self.evaluation.passes_left
            passes = Passes(done=done(step, num_steps=self.num_steps), left=left(step, num_steps=self.num_steps))
        return time.seconds_left(
            steps_done=steps_done,
            steps_left=self.num_steps - step,
            passes=passes,
            at_most=None if self.budget_seconds is None else self.budget_seconds - used,
        )

    def passes_seconds(self, *, first: int, last: int, step_seconds: float, tokens_per_step: int) -> float:
        """Return the planned seconds of the passes between two steps; the one before the first step counts."""
        if self.evaluation is None:
            return 0.0
        before = self.evaluation.passes_by(first, num_steps=self.num_steps) if first else 0
        due = self.evaluation.passes_by(last, num_steps=self.num_steps) - before
        return due * self.evaluation.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens_per_step)


@dataclass(frozen=True, kw_only=True)
class RunLedger:
    """A run's accounts; None: not in its folder.

    All but `step` and `num_steps` are of its own steps, without those of a parent run. `steps` are those in the
    accounts; the last steps of a killed run may be in its log alone: `logged_step`.
    """

    name: str
    status: str
    steps: OwnSteps
    num_devices: int
    mean_devices: float
    time: TimeBalance
    device_seconds: float
    flops_per_token: Mapping[str, float]
    peak_flops: float | None
    peak_source: str
    usd_per_gpu_hour: float | None
    end: RunEnd
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
    logged_tokens_per_second: float | None = None  # of whole steps, without pauses
    logged_step: int = 0

    @property
    def step(self) -> int:
        """Return the last step, counted from the model's first one."""
        return max(self.steps.last, self.logged_step)

    @property
    def num_steps(self) -> int:
        """Return the steps of the whole run."""
        return self.end.num_steps

    @property
    def tokens(self) -> int:
        """Return its own tokens with loss, which its speeds are of."""
        return self.steps.tokens

    @property
    def trained_share(self) -> float:
        """Return the share of its own tokens that have loss."""
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
        """Return the utilization of a speed by a formula; None if the peak is not known."""
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
        """Return a device's speed in its steps as a share of its speed alone; None: not measured."""
        seconds = sum(self.time.seconds.get(kind, 0.0) for kind in STEP_KINDS)
        alone = self.single_device_tokens_per_second
        return self.tokens / seconds / self.mean_devices / alone if seconds and alone else None

    @property
    def usd(self) -> float | None:
        """Return the cost of the devices for the whole clock, None without a price."""
        return self._usd(self.device_seconds)

    @property
    def projected_usd(self) -> float | None:
        """Return the cost of the whole run at its rate so far."""
        return self._usd(self._projected_device_seconds)

    @property
    def kwh(self) -> float | None:
        """Return the energy of the devices at their rated power over the whole clock: an upper bound."""
        return self._kwh(self.device_seconds)

    @property
    def projected_kwh(self) -> float | None:
        """Return the energy of the whole run at its pace so far."""
        return self._kwh(self._projected_device_seconds)

    @property
    def projected_seconds(self) -> float | None:
        """Return the clock of the whole run at its pace so far; None before the first step."""
        return None if self._seconds_left is None else self.time.wall_seconds + self._seconds_left

    @property
    def _seconds_left(self) -> float | None:
        if self.status == "FINISHED":  # early stopping leaves steps out
            return 0.0
        steps = {"step": self.step, "steps_done": self.steps.num, "num_devices": self.num_devices}
        return self.end.seconds_left(self.time, **steps, device_seconds=self.device_seconds)

    @property
    def _projected_device_seconds(self) -> float | None:
        left = self._seconds_left
        return None if left is None else self.device_seconds + left * self.num_devices

    def _usd(self, device_seconds: float | None) -> float | None:
        if self.usd_per_gpu_hour is None or device_seconds is None:
            return None
        return usd(device_seconds, num_devices=1, usd_per_gpu_hour=self.usd_per_gpu_hour)

    def _kwh(self, device_seconds: float | None) -> float | None:
        if self.device_watts is None or device_seconds is None:
            return None
        return kwh(device_seconds, num_devices=1, device_watts=self.device_watts)

    @property
    def biggest_lever(self) -> str | None:
        """Name the change that saves most time: less of one kind, a slow rank repaired, or compiled steps."""
        levers = {kind_words(kind): (self.time.seconds.get(kind, 0.0), advice) for kind, advice in LEVERS.items()}
        computing = self.time.seconds.get(COMPUTE, 0.0)
        if (ranks := self.by_rank) is not None and ranks.slow:
            waits, advice = levers[COMMUNICATION]
            excess = min((ranks.slow[0].own - ranks.median) * self.steps.num, computing + waits)
            levers[COMMUNICATION] = (waits - excess, advice)
            name = "slow rank" if len(ranks.slow) == 1 else "slow ranks"
            levers[name] = (excess, RANK_ADVICE.format(ranks.slow_words))
        saved = EAGER_SAVES * computing
        whole = saved / self.steps.num * (self.num_steps - self.steps.first) if self.steps.num else 0.0
        if self.is_compiled is False and whole >= COMPILING_SECONDS:
            levers["eager mode"] = (saved, EAGER_ADVICE)
        name, (seconds, advice) = max(levers.items(), key=lambda lever: lever[1][0])
        return f"{name} {seconds / self.time.wall_seconds:.0%}: {advice}" if seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the accounts as plain numbers."""
        done, fork, planned = replace(self.steps, last=self.step), self.steps.fork, self.beside_plan
        return {
            "run": self.name,
            "status": self.status,
            "step": self.step,
            "tokens": done.tokens,
            "all_tokens": done.all_tokens,
            "forked_from": None
            if fork is None
            else {"run": fork.run, "is_gone": fork.is_gone, "step": done.first, "tokens": done.inherited_tokens},
            "trained_share": self.trained_share,
            "attempts": self.time.num_attempts,
            "wall_seconds": self.time.wall_seconds,
            "seconds": dict(self.time.seconds),
            "goodput": self.time.goodput,
            "tokens_per_second": self.tokens_per_second,
            "mfu": {over: {formula: self.mfu(formula, over) for formula in FORMULAS} for over in OVER},
            "peak": {"flops": self.peak_flops, "source": self.peak_source, "num_devices": self.mean_devices},
            "scaling_efficiency": self.scaling_efficiency,
            "share_of_measured_matmul": self.share_of_roofline,
            "doubts": {"peak": self.peak_doubt, "measured_matmul": self.measured_doubt},
            "cost": {"usd": self.usd, "projected_usd": self.projected_usd},
            "energy": {"kwh": self.kwh, "projected_kwh": self.projected_kwh},
            "plan_and_fact": None
            if planned is None
            else {
                "seconds": {"planned": planned.planned_seconds, "fact": planned.seconds},
                "mfu_palm": {"planned": planned.planned_mfu, "fact": planned.mfu, "planned_by": planned.mfu_source},
                "difference_seconds": planned.difference_seconds,
                "reasons": dict(planned.reasons),
            },
            "sent_bytes": None if self.sent is None else asdict(self.sent),
            "saves": None if self.saves is None else asdict(self.saves),
            "ranks": None if self.by_rank is None else self.by_rank.to_json(),
            "biggest_lever": self.biggest_lever,
        }


def read_ledger(folder: Path, *, points: Sequence[Point] | None = None) -> RunLedger:
    """Read a run's accounts, also while it runs; `points` are those of its log, if they have been read.

    Raises:
        ConfigurationError: The folder is not a run's, or is of a run without accounts.
    """
    status = settled_status(folder)
    plan: dict[str, Any] = read_json(folder / "plan.json")
    if status is None or not (folder / "events" / "rank0.jsonl").exists():
        raise ConfigurationError(f"{folder} is not the folder of a run, as runs/NAME is.{nearest_words(folder)}")
    attempts = read_attempts(folder, is_running=status.status == "RUNNING")
    if not any(row["name"] in (ACCOUNTS, READING) for row in first_rank_events(folder)):
        raise ConfigurationError(f"{folder} has no accounts: the run had no callbacks.ledger, or did not start.")
    points = logged_points(folder) if points is None else points
    speed = logged_speed(folder, points, attempts)
    ledger = replace(
        _ledger(folder.name, status.shown, plan, attempts, fork=read_fork(folder)),
        sent=_sent(points, plan.get("communication") or {}),
        by_rank=_by_rank(folder),
        saves=_saves(points),
        logged_tokens_per_second=None if speed is None else speed.tokens_per_second,
        logged_step=furthest(points).step,
    )
    return _with_mean_peak(ledger, full_speed(points))


def _ledger(name: str, status: str, plan: dict[str, Any], attempts: list[Attempt], *, fork: Fork | None) -> RunLedger:
    steps, by_kind = own_steps(plan, attempts, fork), balance(attempts)
    num_devices, peak = plan.get("batch", {}).get("num_ranks", 1), plan.get("peak", {})
    end = run_end(plan, last_step=steps.last)
    return RunLedger(
        name=name,
        status=status,
        steps=steps,
        end=end,
        num_devices=num_devices,
        mean_devices=mean_devices(attempts, num_devices=num_devices),
        time=by_kind,
        device_seconds=spent(attempts, num_devices=num_devices).device_seconds,
        flops_per_token=plan.get("flops_per_token", {}),
        peak_flops=peak.get("flops"),
        peak_source=peak.get("source", "unknown"),
        usd_per_gpu_hour=plan.get("cost", {}).get("usd_per_gpu_hour"),
        peak_doubt=peak.get("doubt", ""),
        measured_flops=peak.get("measured_flops"),
        measured_doubt=peak.get("measured_doubt", ""),
        single_device_tokens_per_second=peak.get("single_device_tokens_per_second"),
        device_watts=plan.get("energy", {}).get("device_watts"),
        is_compiled=plan.get("compiled"),
        beside_plan=_beside_plan(plan.get("time"), by_kind, steps, end),
    )


def run_end(plan: Mapping[str, Any], *, last_step: int) -> RunEnd:
    """Return the end of a run by its plan.json; `last_step` if the plan has none."""
    horizon, evaluation = plan.get("horizon", {}), plan.get("evaluation") or {}
    sizes = {name: evaluation[name] for name in ("num_passes", "tokens_per_pass") if name in evaluation}
    return RunEnd(
        num_steps=horizon.get("steps", last_step),
        evaluation=EvaluationPlan(**sizes) if len(sizes) == 2 else None,
        budget_seconds=horizon.get("seconds"),
        counts_devices=horizon.get("time_limit") == "usd",
    )


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


def _with_mean_peak(ledger: RunLedger, full: float | None) -> RunLedger:
    """Use the mean of the attempts' peaks if they differ, by the log's tokens/s at a utilization of 1."""
    per_token, newest = ledger.flops_per_token.get("palm"), ledger.peak_flops
    mean = full * per_token / ledger.mean_devices if full and per_token else newest
    if ledger.time.num_attempts < 2 or newest is None or mean is None or math.isclose(mean, newest, rel_tol=1e-3):
        return ledger
    planned = ledger.beside_plan
    return replace(
        ledger,
        peak_flops=mean,
        measured_flops=mean if ledger.measured_flops == newest else ledger.measured_flops,
        peak_source=f"{ledger.peak_source}; mean of its attempts over their steps",
        beside_plan=None if planned is None else replace(planned, is_of_other_peak=True),
    )


def _sent(points: Sequence[Point], planned: Mapping[str, Any]) -> SentBytes | None:
    """Return the sent bytes; None if the ranks meet at each step, or counted none."""
    counts = [point for point in points if SENT in point.metrics]
    if not counts or all(group.get("every_steps", 1) == 1 for group in planned.get("groups", [])):
        return None
    return SentBytes(counted=counts[-1].metrics[SENT], planned=counts[-1].step * planned["bytes_per_step"])


def _saves(points: Sequence[Point]) -> SavePauses | None:
    copied, waited, written = ([one.metrics[name] for one in points if name in one.metrics] for name in SAVED)
    return SavePauses(len(copied), sum(copied), sum(waited), sum(written)) if copied or waited else None


def _by_rank(folder: Path) -> SlowRanks | None:
    rows = {int(path.stem.removeprefix("rank")): path for path in (folder / "events").glob("rank*.jsonl")}
    return slow_ranks((rank, [*event_rows(rows[rank])]) for rank in sorted(rows)) if len(rows) > 1 else None


def slow_ranks(rows_of_ranks: Iterable[tuple[int, Sequence[dict[str, Any]]]]) -> SlowRanks | None:
    """Compare ranks by their events' rows; None for fewer than two with a traced step in the newest attempt."""
    newest = [(rank, _newest_attempt(rows)) for rank, rows in rows_of_ranks]
    times = [_time_of(rank, rows) for rank, rows in newest if any(row["name"] == TRACED for row in rows)]
    if len(times) < 2:
        return None
    num_steps = max(sum(row["name"] == TRACED for row in rows) for _, rows in newest)
    return SlowRanks(ranks=tuple(sorted(times, key=lambda one: -one.own)), num_steps=num_steps)


def _newest_attempt(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    starts = [index for index, row in enumerate(rows) if row["name"] == "attempt"]
    return rows[starts[-1] :] if starts else rows


def _time_of(rank: int, rows: Sequence[dict[str, Any]]) -> RankTime:
    steps = [row for row in rows if row["name"] == TRACED]
    readings = [row for row in rows if row["name"] == READING]
    last = readings[-1] if readings else {}
    num_steps = last.get("step", 0) - (readings[0]["step"] if readings else 0)
    return RankTime(
        rank=rank,
        computing=statistics.mean(row["own_seconds"] for row in steps),
        data_wait=last.get("data_wait", 0.0) / num_steps if num_steps else 0.0,
        waiting=statistics.mean(row["waiting_seconds"] for row in steps),
    )
