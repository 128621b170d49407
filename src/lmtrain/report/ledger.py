"""The ledger of a run: where its time, FLOPs and money went, by its folder's events, plan and log."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.observed.time_accounts import COMPUTE, EVALUATION, GENERATION, LEVERS, SETUP, kind_words
from lmtrain.accounting.training_plan.plan_parts import EvaluationPlan
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.attempts import OVER, READING, event_rows, first_rank_events
from lmtrain.report.runs.facts import BATCH, RunRecord
from lmtrain.report.runs.find import nearest_words
from lmtrain.tracking.events import ACCOUNTS, TRACED

FORMULAS: Final = ("palm", "causal", BATCH)
UTILIZATION: Final = "utilization"
COMMUNICATION: Final = "communication"  # waits for slower ranks are on this account
SLOW: Final = 1.1  # times the median of the ranks
MOST_RANKS: Final = 8  # shown


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Seconds of a step: a rank's computing, its waits for data, and for other ranks; `own` are those of its work.

    `stage` is the rank's in a pipeline, None without one.
    """

    rank: int
    computing: float
    data_wait: float
    waiting: float
    own: float
    stage: int | None = None

    def words(self, cause: str) -> str:
        """Name it with the cause of its slowness."""
        return f"rank {self.rank} ({cause if self.stage is None else f'stage {self.stage}, {cause}'})"


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
            one.words("data wait" if one.data_wait - usual > (one.own - self.median) / 2 else "computing")
            for one in self.slow[:MOST_RANKS]
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain numbers."""
        return {
            "num_ranks": len(self.ranks),
            "traced_steps": self.num_steps,
            "median_own_seconds": self.median,
            "slow": [one.rank for one in self.slow],
            "slowest": [asdict(one) for one in self.ranks[:MOST_RANKS]],
        }


@dataclass(frozen=True, kw_only=True)
class PlanAndFact:
    """Planned and actual seconds of the steps done; `reasons` sum to the difference, the largest first.

    A plan has computing, written answers and evaluation. `utilization` is the excess of computing over the plan; every
    other reason is a kind of time with a smaller or no share in the plan.
    """

    planned_seconds: float
    seconds: float
    planned_mfu: float
    mfu: float
    mfu_source: str
    reasons: Mapping[str, float]

    @property
    def difference_seconds(self) -> float:
        """Return how much longer it took than planned; below 0 is faster."""
        return self.seconds - self.planned_seconds


@dataclass(frozen=True)
class RunLedger(RunRecord):
    """A run's accounts; None: not in its folder."""

    @property
    def has_accounts(self) -> bool:
        """Report whether anything was booked."""
        return any(row["name"] in (ACCOUNTS, READING) for row in first_rank_events(self.folder))

    @property
    def status_words(self) -> str:
        """Return its state, its step and that of its end."""
        return f"{self.shown_status.lower()} at step {self.step:,} of {self.num_steps:,}"

    @property
    def projected_device_seconds(self) -> float | None:
        """Return the time of all devices for the whole run at its pace so far."""
        left = self._seconds_left
        return None if left is None else self.device_seconds + left * self.num_devices

    @cached_property
    def _evaluation(self) -> EvaluationPlan | None:
        planned = self.plan.get("evaluation") or {}
        sizes = {name: planned[name] for name in ("num_passes", "tokens_per_pass") if name in planned}
        return EvaluationPlan(**sizes) if len(sizes) == 2 else None

    @property
    def _seconds_left(self) -> float | None:
        """Return how long the run continues at its pace so far, no longer than its budget of time."""
        if self.status is not None and self.status.status == "FINISHED":  # early stopping leaves steps out
            return 0.0
        horizon, evaluation = self.plan.get("horizon", {}), self._evaluation
        passes = 0 if evaluation is None else evaluation.passes_by(self.step, num_steps=self.num_steps)
        counts_devices, limit = horizon.get("time_limit") == "usd", horizon.get("seconds")
        used = self.device_seconds / self.num_devices if counts_devices else self.time.wall_seconds
        return self.time.seconds_left(
            steps_done=self.own.num,
            steps_left=self.num_steps - self.step,
            passes_done=passes,
            passes_left=evaluation.num_passes - passes if evaluation else 0,
            at_most=math.inf if limit is None else limit - used,
        )

    @cached_property
    def beside_plan(self) -> PlanAndFact | None:
        """Return the planned and the actual time of the steps done, None without a plan of time."""
        planned, evaluation, steps = self.plan.get("time"), self._evaluation, self.own
        if planned is None:
            return None
        computed, computing = self.time.seconds.get(COMPUTE, 0.0), steps.num * planned["step_seconds"]
        reasons = {kind: seconds for kind, seconds in self.time.seconds.items() if kind != COMPUTE}
        reasons[UTILIZATION] = computed - computing
        others = {GENERATION: steps.num * self.plan.get("generation", {}).get("seconds_per_step", 0.0)}
        if self.own.first == 0:
            others[SETUP] = planned.get("accounts", {}).get(SETUP, 0.0)
        if evaluation is not None:
            due = evaluation.passes_by(steps.last, num_steps=self.num_steps)
            due -= evaluation.passes_by(steps.first, num_steps=self.num_steps) if steps.first else 0
            pace = {"step_seconds": planned["step_seconds"], "tokens_per_step": steps.tokens_per_step}
            others[EVALUATION] = due * evaluation.pass_seconds(**pace)
        reasons |= {kind: reasons.get(kind, 0.0) - seconds for kind, seconds in others.items() if seconds}
        return PlanAndFact(
            planned_seconds=computing + sum(others.values()),
            seconds=self.time.wall_seconds,
            planned_mfu=planned["mfu_palm"],
            mfu=planned["mfu_palm"] * computing / computed if computed else 0.0,  # the same FLOPs, in another time
            mfu_source=planned["source"],
            reasons=dict(sorted(reasons.items(), key=lambda reason: -abs(reason[1]))),
        )

    @cached_property
    def by_rank(self) -> SlowRanks | None:
        """Compare its ranks, None for a single one or without a traced step."""
        rows = {int(path.stem.removeprefix("rank")): path for path in (self.folder / "events").glob("rank*.jsonl")}
        found = slow_ranks((rank, [*event_rows(rows[rank])]) for rank in sorted(rows)) if len(rows) > 1 else None
        return found and replace(found, ranks=tuple(self._in_pipeline(one) for one in found.ranks))

    def _in_pipeline(self, one: RankTime) -> RankTime:
        """Return a rank's time with its stage: stages are neighbours, outside of tensor and context groups."""
        batch = self.plan.get("batch", {})
        num_stages, parts = batch.get("num_stages", 1), batch.get("tensor_ranks", 1) * batch.get("context_ranks", 1)
        return replace(one, stage=one.rank // parts % num_stages) if num_stages > 1 else one

    @property
    def biggest_lever(self) -> str | None:
        """Name the change that saves most time: less of one kind, or a slow rank repaired."""
        levers = {kind_words(kind): (self.time.seconds.get(kind, 0.0), advice) for kind, advice in LEVERS.items()}
        if (ranks := self.by_rank) is not None and ranks.slow:
            waits, advice = levers[COMMUNICATION]
            most = self.time.seconds.get(COMPUTE, 0.0) + waits
            excess = min((ranks.slow[0].own - ranks.median) * self.own.num, most)
            levers[COMMUNICATION] = (waits - excess, advice)
            machine = "run `lmtrain doctor` on that machine"
            levers["slow ranks"] = (excess, f"the others wait for {ranks.slow_words}; {machine}")
        name, (seconds, advice) = max(levers.items(), key=lambda lever: lever[1][0])
        return f"{name} {seconds / self.time.wall_seconds:.0%}: {advice}" if seconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the accounts as plain numbers."""
        peak, fork, planned = self.plan.get("peak", {}), self.fork, self.beside_plan
        own_steps = self.step - self.own.first
        inherited = {"step": self.own.first, "tokens": self.own.inherited_tokens}
        return {
            "run": self.folder.name,
            "status": self.shown_status,
            "step": self.step,
            "tokens": round(own_steps * self.own.tokens_per_step * self.own.trained_share),
            "all_tokens": own_steps * self.own.tokens_per_step,
            "forked_from": None if fork is None else {"run": fork.run, "is_gone": fork.is_gone} | inherited,
            "trained_share": self.own.trained_share,
            "flops": self.own.flops,
            "attempts": self.time.num_attempts,
            "wall_seconds": self.time.wall_seconds,
            "seconds": dict(self.time.seconds),
            "goodput": self.time.goodput,
            "tokens_per_second": self.speeds,
            "mfu": {over: {formula: self.mfu(formula, over) for formula in FORMULAS} for over in OVER},
            "peak": {"flops": peak.get("flops"), "source": peak.get("source"), "num_devices": self.mean_devices},
            "cost": {"usd": self.usd, "projected_usd": self.usd_of(self.projected_device_seconds)},
            "plan_and_fact": None
            if planned is None
            else {
                "seconds": {"planned": planned.planned_seconds, "fact": planned.seconds},
                "mfu_palm": {"planned": planned.planned_mfu, "fact": planned.mfu, "planned_by": planned.mfu_source},
                "difference_seconds": planned.difference_seconds,
                "reasons": dict(planned.reasons),
            },
            "ranks": None if self.by_rank is None else self.by_rank.to_json(),
            "biggest_lever": self.biggest_lever,
        }


def read_ledger(folder: Path) -> RunLedger:
    """Read a run's accounts, also while it runs."""
    ledger = RunLedger(folder)
    if ledger.status is None or not (folder / "events" / "rank0.jsonl").exists():
        raise ConfigurationError(f"{folder} is not the folder of a run, as runs/NAME is.{nearest_words(folder)}")
    if not ledger.has_accounts:
        raise ConfigurationError(f"{folder} has no accounts: the run had no callbacks.ledger, or did not start.")
    return ledger


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
    computing = statistics.mean(row["own_seconds"] for row in steps)
    data_wait = last.get("data_wait", 0.0) / num_steps if num_steps else 0.0
    waiting = statistics.mean(row["waiting_seconds"] for row in steps)
    return RankTime(rank=rank, computing=computing, data_wait=data_wait, waiting=waiting, own=computing + data_wait)
