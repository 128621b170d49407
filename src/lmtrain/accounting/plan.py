"""What a run is going to be, computed before anything is allocated and kept beside its results."""

from dataclasses import asdict, dataclass
from typing import Any

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.budgets import Horizon
from lmtrain.accounting.flops import FlopsPerToken
from lmtrain.accounting.memory import DeviceMemory
from lmtrain.accounting.model_shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shape, batch, horizon and FLOPs of one run; None where something is not known.

    `peak_flops` is of one device; `peak_source` says where it is from, or why there is none.
    """

    shape: ModelShape
    batch: BatchPlan
    horizon: Horizon
    flops_per_token: FlopsPerToken
    train_tokens: int | None = None
    peak_flops: float | None = None
    peak_source: str = "unknown"
    usd_per_gpu_hour: float | None = None
    memory: DeviceMemory | None = None

    @property
    def epochs(self) -> float | None:
        """Return how many times the run reads its training tokens."""
        return None if self.train_tokens is None else self.horizon.tokens / self.train_tokens

    def to_json(self) -> dict[str, Any]:
        """Return nested plain numbers under the keys that scripts rely on."""
        report: dict[str, Any] = {
            "parameters": {
                "total": self.shape.num_parameters,
                "embedding": self.shape.num_embedding_parameters,
                "matmul": self.shape.num_matmul_parameters,
                "active": self.shape.num_active_parameters,
            },
            "batch": self._batch(),
            "horizon": asdict(self.horizon) | {"epochs": self.epochs},
            "data": {"train_tokens": self.train_tokens},
            "flops_per_token": asdict(self.flops_per_token),
            "peak": {"flops": self.peak_flops, "source": self.peak_source},
            "cost": {"usd_per_gpu_hour": self.usd_per_gpu_hour},
        }
        if self.memory is not None:
            report["memory"] = {"per_device_bytes": self.memory.to_json()}
        return report

    def _batch(self) -> dict[str, int]:
        return {
            "context_tokens": self.batch.context_tokens,
            "micro_batch_sequences": self.batch.micro_batch_sequences,
            "accumulation_micro_steps": self.batch.accumulation_micro_steps,
            "num_ranks": self.batch.num_ranks,
            "sequences_per_step": self.batch.sequences_per_step,
            "tokens_per_step": self.batch.tokens_per_step,
        }
