"""A run's plan, computed before any allocation and kept next to its results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import NOT_BEGUN, SECONDS_PER_HOUR, Horizon, RunSoFar
from lmtrain.accounting.model.flops import FlopsPerToken
from lmtrain.accounting.model.memory import DeviceMemory
from lmtrain.accounting.model.model_shape import ModelShape
from lmtrain.accounting.observed.time_accounts import COMPUTE, EVALUATION, GENERATION, SETUP
from lmtrain.accounting.scaling import Scaling
from lmtrain.accounting.training_plan.plan_parts import (
    FORWARD_SHARE,
    CheckpointPlan,
    EvaluationPlan,
    GenerationPlan,
    OffloadPlan,
    TeacherPlan,
)
from lmtrain.accounting.training_plan.speed import CommunicationVolume, Speed
from lmtrain.accounting.training_plan.step_time import StepTime
from lmtrain.accounting.training_plan.utilization import usd


@dataclass(frozen=True)
class Advice:
    """Lines for a person, and whether the run fits its devices and its budgets."""

    lines: tuple[str, ...]
    is_possible: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shape, batch, horizon and FLOPs of one run; None where something is not known.

    `seen_tokens` are the mean tokens in a token's attention where documents are separate; None is
    the whole context. `peak_flops` is of one device; `peak_source` says where it is from, or why there is none.
    `device_bytes` is one device's memory.
    `epoch_tokens` are those of all training rows once, padding included.
    `components` count parameters by part, `source_epochs` how often each source of a mixture is read.
    `awaits_data` are the words for figures of data not known yet, and what is assumed until then.
    `done` is before it: FLOPs per run, time and money are those of the steps `ahead`.
    `expected_tokens` are the run's by a speed that does not decide its end. `step` is
    modelled, None of a device or links of unknown rates.
    `is_from_scratch`: all parameters are trained, from no other run's.
    """

    shape: ModelShape
    batch: BatchPlan
    horizon: Horizon
    flops_per_token: FlopsPerToken
    train_tokens: int | None = None
    epoch_tokens: int | None = None
    source_epochs: Mapping[str, float] = field(default_factory=dict[str, float])
    awaits_data: str | None = None
    seen_tokens: int | None = None
    peak_flops: float | None = None
    peak_source: str = "unknown"
    usd_per_gpu_hour: float | None = None
    device_bytes: int | None = None
    components: Mapping[str, int] = field(default_factory=dict[str, int])
    memory: DeviceMemory | None = None
    offload: OffloadPlan | None = None
    speed: Speed | None = None
    step: StepTime | None = None
    communication: CommunicationVolume | None = None
    evaluation: EvaluationPlan | None = None
    generation: GenerationPlan | None = None
    teacher: TeacherPlan | None = None
    scores_ahead: bool = False
    checkpoints: CheckpointPlan | None = None
    scaling: Scaling | None = None
    is_compiled: bool | None = None
    is_from_scratch: bool = True
    done: RunSoFar = NOT_BEGUN
    expected_tokens: int | None = None

    @property
    def ahead(self) -> Horizon:
        """Return the steps, tokens and FLOPs after those done."""
        return self.horizon.ending_at(self.horizon.steps - self.done.steps)

    @property
    def knows_its_end(self) -> bool:
        """Return whether the last step is more than a stand-in: a budget of time has one only at a known speed."""
        return not self.horizon.is_stand_in

    @property
    def epochs(self) -> float | None:
        """Return how many times the run reads its training rows."""
        return None if self.epoch_tokens is None else self.horizon.tokens / self.epoch_tokens

    @property
    def fits(self) -> bool | None:
        """Return whether the peak of a step fits a device, None where its memory is not known."""
        if self.memory is None or self.device_bytes is None:
            return None
        return self.memory.total <= self.device_bytes

    @property
    def seconds(self) -> float | None:
        """Return how long steps and evaluation take, without the start and checkpoints."""
        return sum(self.accounts.values()) if self.speed else None

    @property
    def accounts(self) -> dict[str, float]:
        """Return the seconds of steps and evaluation by the ledger's kinds; empty at an unknown speed."""
        if self.speed is None:
            return {}
        steps, of_token = self.ahead.steps, self.speed.step_seconds / self.batch.tokens_per_step
        kinds = {
            COMPUTE: steps * self.speed.step_seconds,
            GENERATION: steps * self.generation_seconds_per_step,
            EVALUATION: self.evaluation_seconds,
            SETUP: self.tokens_scored_ahead * FORWARD_SHARE * of_token,
        }
        return {kind: seconds for kind, seconds in kinds.items() if seconds}

    @property
    def tokens_scored_ahead(self) -> int:
        """Return the tokens of rows that the starting model reads before the first step, each row once."""
        if not self.scores_ahead or self.done.steps:
            return 0
        return min(self.horizon.tokens, self.epoch_tokens or self.horizon.tokens)

    @property
    def hours(self) -> float | None:
        """Return the same in hours."""
        return None if self.seconds is None else self.seconds / SECONDS_PER_HOUR

    @property
    def evaluation_seconds(self) -> float:
        """Return how long the passes over held-out text ahead take; 0 where there are none, or none are known."""
        if self.speed is None or self.evaluation is None:
            return 0.0
        tokens, share = self.batch.tokens_per_step, self.ahead.steps / self.horizon.steps
        return share * self.evaluation.seconds(step_seconds=self.speed.step_seconds, tokens_per_step=tokens)

    @property
    def generation_seconds_per_step(self) -> float:
        """Return the least time for writing a step's answers; 0 where none are written, or no speed is known."""
        if self.speed is None or self.generation is None:
            return 0.0
        return self.generation.seconds(step_seconds=self.speed.step_seconds, tokens_per_step=self.batch.tokens_per_step)

    @property
    def usd(self) -> float | None:
        """Return the price of the devices for so long."""
        if self.seconds is None or self.usd_per_gpu_hour is None:
            return None
        return usd(self.seconds, num_devices=self.batch.num_ranks, usd_per_gpu_hour=self.usd_per_gpu_hour)

    def to_json(self) -> dict[str, Any]:
        """Return nested plain numbers under stable keys for scripts."""
        report: dict[str, Any] = {
            "parameters": {
                "total": self.shape.num_parameters,
                "embedding": self.shape.num_embedding_parameters,
                "matmul": self.shape.num_matmul_parameters,
                "active": self.shape.num_active_parameters,
                "trained": self.shape.num_parameters - self.shape.num_frozen_parameters,
            },
            "batch": self._batch(),
            "horizon": asdict(self.horizon) | {"epochs": self.epochs},
            "data": {name: getattr(self, name) for name in ("train_tokens", "epoch_tokens", "seen_tokens")},
            **({"sources": {"epochs": dict(self.source_epochs)}} if self.source_epochs else {}),
            "flops_per_token": asdict(self.flops_per_token),
            "peak": {"flops": self.peak_flops, "source": self.peak_source},
            "cost": {"usd": self.usd, "usd_per_gpu_hour": self.usd_per_gpu_hour},
            "compiled": self.is_compiled,
        }
        if self.components:
            report["parameters"]["components"] = dict(self.components)
        if self.memory is not None:
            report["memory"] = {
                "per_device_bytes": self.memory.to_json(),
                "device_bytes": self.device_bytes,
                "fits": self.fits,
            }
        if self.offload is not None:
            report["optimizer_cpu_offload"] = self.offload.to_json()
        if self.speed is not None and self.hours is not None:
            rate = self.batch.tokens_per_step / self.speed.step_seconds
            hours = {
                "accounts": self.accounts,
                "evaluation_seconds": self.evaluation_seconds,
                "hours": self.hours,
                "days": self.hours / 24,
            }
            report["time"] = asdict(self.speed) | {"tokens_per_second": rate} | hours
        if self.evaluation is not None:
            report["evaluation"] = asdict(self.evaluation)
        return report | self._links_and_checkpoints()

    def _links_and_checkpoints(self) -> dict[str, Any]:
        report: dict[str, Any] = {}
        if self.generation is not None:
            report["generation"] = asdict(self.generation) | {"seconds_per_step": self.generation_seconds_per_step}
        if self.teacher is not None:
            report["teacher"] = asdict(self.teacher)
        if self.communication is not None:
            sent = self.communication
            report["communication"] = {
                "bytes_per_step": sent.total_bytes,
                "seconds_per_step": sent.seconds,
                "groups": [asdict(group) for group in sent.groups],
            }
        if self.checkpoints is not None:
            cadence = self.checkpoints.cadence
            report["checkpoints"] = asdict(self.checkpoints) | {"every_seconds": cadence and cadence.every_seconds}
        if self.scaling is not None:
            report["scaling"] = asdict(self.scaling)
        return report

    def _batch(self) -> dict[str, int]:
        names = (
            *("context_tokens", "accumulation_micro_steps", "num_ranks"),
            *("tensor_ranks", "context_ranks", "num_stages"),
        )
        found = {name: getattr(self.batch, name) for name in (*names, "sequences_per_step", "tokens_per_step")}
        return found | {"micro_batch_sequences": self.batch.sequences_per_micro_step}
