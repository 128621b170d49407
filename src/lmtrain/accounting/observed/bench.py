"""One optimizer step's time by part, its bottleneck."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.model.flops import FlopsPerToken

LARGE_WAIT: Final = 0.15
LARGE_OPTIMIZER: Final = 0.2
BUSY: Final = 0.6  # of the rate of matrix products: beyond it the device itself is the limit
UNEVEN: Final = 1.3  # of the fastest round: beyond it something else had the machine


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Seconds of one optimizer step by part; `whole` is the Trainer's, the parts are timed by themselves.

    `optimizer` has clipping and the step. `host` is the excess of the whole over the parts: callbacks and the loop.
    """

    whole: float
    data: float
    forward: float
    backward: float
    optimizer: float

    @property
    def host(self) -> float:
        """Return the seconds left for callbacks and the loop; 0 where the parts overlap in the whole."""
        return max(0.0, self.whole - self.data - self.forward - self.backward - self.optimizer)

    def shares(self) -> dict[str, float]:
        """Return each part as a share of their sum."""
        named = {name: getattr(self, name) for name in ("data", "forward", "backward", "optimizer", "host")}
        total = sum(named.values()) or 1.0
        return {name: seconds / total for name, seconds in named.items()}


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """FLOP/s of a device; None: unknown.

    `flops` divides MFU, and has a `source`; `matmul` is the rate of square matrix products on this machine.
    """

    flops: float | None
    source: str
    matmul: float | None


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The measured step of a config.

    `step_seconds` is the mean of each round; their median is the step. `setup_seconds` is the time of building.
    """

    parts: StepParts
    step_seconds: Sequence[float]
    num_steps: int
    batch: BatchPlan
    flops_per_token: FlopsPerToken
    peaks: Peaks
    peak_bytes: int
    setup_seconds: float
    first_step_seconds: float
    syncs_per_step: float

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of this rank."""
        return self.batch.tokens_per_step / self.batch.num_ranks / median(self.step_seconds)

    @property
    def mfu(self) -> dict[str, float | None]:
        """Return the shares of the peak by both conventions."""
        return {"palm": self._share(self.flops_per_token.palm), "causal": self._share(self.flops_per_token.causal)}

    @property
    def of_matmul(self) -> float | None:
        """Return the rate as a share of that of square matrix products."""
        rate = self.peaks.matmul
        return None if rate is None else self.flops_per_token.causal * self.tokens_per_second / rate

    @property
    def is_uneven(self) -> bool:
        """Return whether rounds differ too much for a machine without other work."""
        return median(self.step_seconds) > UNEVEN * min(self.step_seconds)

    @property
    def bottleneck(self) -> str:
        """Name the bottleneck: data, host, optimizer, or the model's own computing."""
        shares = self.parts.shares()
        waits = max(("data", "host"), key=lambda name: shares[name])
        if shares[waits] > LARGE_WAIT:
            return waits
        if shares["optimizer"] > max(LARGE_OPTIMIZER, shares["forward"]):
            return "optimizer"
        return "compute at its limit" if (self.of_matmul or 0.0) > BUSY else "compute"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        times = {"host": self.parts.host, "setup": self.setup_seconds, "first_step": self.first_step_seconds}
        return {
            "seconds": {**asdict(self.parts), **times},
            "rounds": list(self.step_seconds),
            "shares": self.parts.shares(),
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "of_matmul_rate": self.of_matmul,
            "peak": asdict(self.peaks),
            "peak_bytes": self.peak_bytes,
            "host_syncs": self.syncs_per_step,
            "num_steps": self.num_steps,
            "bottleneck": self.bottleneck,
        }

    def _share(self, flops_per_token: float) -> float | None:
        return self.peaks.flops and flops_per_token * self.tokens_per_second / self.peaks.flops
