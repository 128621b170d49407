"""Where one optimizer step's time goes, which part holds it back, and what arithmetic says would help."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.flops import FlopsPerToken

WORTH_TELLING: Final = 0.05  # of a step
LARGE_OPTIMIZER: Final = 0.2
BUSY: Final = 0.6  # of the peak: beyond it the device itself is what limits


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Seconds of one optimizer step by what it does; `whole` is the Trainer's, the parts are timed by themselves.

    `optimizer` has clipping and the step. `host` is what the whole takes beyond the parts: callbacks, and the loop.
    """

    whole: float
    data: float
    forward: float
    backward: float
    optimizer: float

    @property
    def host(self) -> float:
        """Return what is left for callbacks and the loop; 0 where the parts overlap in the whole."""
        return max(0.0, self.whole - self.data - self.forward - self.backward - self.optimizer)

    def shares(self) -> dict[str, float]:
        """Return each part as a share of their sum."""
        named = {name: getattr(self, name) for name in ("data", "forward", "backward", "optimizer", "host")}
        total = sum(named.values()) or 1.0
        return {name: seconds / total for name, seconds in named.items()}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A config's step as it was measured.

    `wider_seconds_per_token` is what forward and backward took in a micro batch twice as large; None: not tried.
    """

    parts: StepParts
    batch: BatchPlan
    flops_per_token: FlopsPerToken
    peak_flops: float | None
    peak_source: str
    peak_bytes: int
    first_step_seconds: float
    num_steps: int
    is_compiled: bool
    num_workers: int
    wider_seconds_per_token: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Return the speed of this rank."""
        return self.batch.tokens_per_step / self.batch.num_ranks / self.parts.whole

    @property
    def mfu(self) -> dict[str, float | None]:
        """Return the shares of the peak by both conventions."""
        flops = {"palm": self.flops_per_token.palm, "causal": self.flops_per_token.causal}
        if self.peak_flops is None:
            return dict.fromkeys(flops)
        return {name: count * self.tokens_per_second / self.peak_flops for name, count in flops.items()}

    @property
    def bottleneck(self) -> str:
        """Name what holds the step back: data, host, optimizer, or the model's own computing."""
        shares, causal = self.parts.shares(), self.mfu["causal"]
        waits = max(("data", "host"), key=lambda name: shares[name])
        if shares[waits] > 0.15:
            return waits
        if shares["optimizer"] > max(LARGE_OPTIMIZER, shares["forward"]):
            return "optimizer"
        return "compute at its limit" if causal is not None and causal > BUSY else "compute"

    def advice(self) -> list[str]:
        """Say what would help, the largest gain first; each line has its figure or how to get one."""
        found = [*self._waits(), *self._larger_step(), *self._wider(), *self._compiled()]
        return [line for _, line in sorted(found, reverse=True)]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "seconds": {**asdict(self.parts), "host": self.parts.host, "first_step": self.first_step_seconds},
            "shares": self.parts.shares(),
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "peak": {"flops": self.peak_flops, "source": self.peak_source},
            "peak_bytes": self.peak_bytes,
            "num_steps": self.num_steps,
            "bottleneck": self.bottleneck,
            "advice": self.advice(),
        }

    def _waits(self) -> list[tuple[float, str]]:
        shares = self.parts.shares()
        lines: list[tuple[float, str]] = []
        if shares["data"] > WORTH_TELLING:
            fix = f"data.num_workers={max(2, 2 * self.num_workers)} reads beside training"
            lines.append((shares["data"], f"{fix}: up to {_gain(1 - shares['data'])} faster"))
        if shares["host"] > WORTH_TELLING:
            fix = "more work a micro-batch hides callbacks and the loop (batch.tokens_per_step, micro_batch_sequences)"
            lines.append((shares["host"], f"{fix}: up to {_gain(1 - shares['host'])} faster a token"))
        return lines

    def _larger_step(self) -> list[tuple[float, str]]:
        share = self.parts.shares()["optimizer"]
        if share <= LARGE_OPTIMIZER:
            return []
        fix = f"batch.tokens_per_step={2 * self.batch.tokens_per_step} halves the optimizer's share"
        return [(share / 2, f"{fix}: {_gain(1 - share / 2)} faster a token, in fewer steps")]

    def _wider(self) -> list[tuple[float, str]]:
        if self.wider_seconds_per_token is None:
            return []
        tokens = self.batch.tokens_per_step / self.batch.num_ranks
        now = (self.parts.forward + self.parts.backward) / tokens
        saved = 1 - self.wider_seconds_per_token / now
        if saved <= WORTH_TELLING:
            return []
        key = f"batch.micro_batch_sequences={2 * self.batch.micro_batch_sequences}"
        return [(saved, f"{key}: forward and backward {_gain(1 - saved)} faster a token, measured here")]

    def _compiled(self) -> list[tuple[float, str]]:
        if self.is_compiled:
            return []
        return [(0.0, "compile=auto: measure it with the same command; it pays for itself within some hundred steps")]


def _gain(left: float) -> str:
    return f"{1 / left - 1:.0%}"
