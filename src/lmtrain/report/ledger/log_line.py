"""The speed and utilization implied by a line of a run's log, from its step and its time alone."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lmtrain.accounting.observed.metric_names import LOSS_SHARE, TRAIN_LOSS
from lmtrain.accounting.observed.speed_names import speed_name
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.ledger.run_ledger import RunLedger
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.report.runs.clock import on_the_clock
from lmtrain.tracking.run_log import logged_points


@dataclass(frozen=True, kw_only=True)
class ImpliedSpeed:
    """A run's work between two steps of its log; utilization is None where the peak is not known."""

    step: int
    since_step: int
    loss: float
    seconds: float
    tokens_per_second: float
    mfu_palm: float | None
    mfu_causal: float | None
    trained_share: float = 1.0

    @property
    def text(self) -> str:
        """Return it as one line."""
        speed = f"{format_quantity(round(self.tokens_per_second))} {speed_name(self.trained_share)}"
        parts = [f"step {self.step:,}", f"loss {self.loss:.3f}", f"{speed} since step {self.since_step:,}"]
        if self.mfu_palm is not None and self.mfu_causal is not None:
            parts.append(f"MFU {self.mfu_palm:.1%} (palm), {self.mfu_causal:.1%} (causal)")
        return " | ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain numbers."""
        return asdict(self)


def implied_speed(folder: Path, ledger: RunLedger, *, step: int) -> ImpliedSpeed:
    """Compare the log's line of a step with the one before it; pauses in between count, but none between attempts.

    The share of tokens with loss and the peak are those logged at that step, or else the run's.

    Raises:
        ConfigurationError: There is no such line, or none before it.
    """
    logged = logged_points(folder)
    points = [point for point in logged if TRAIN_LOSS in point.metrics]
    clock = on_the_clock(points, read_attempts(folder), began=points[0].time if points else 0.0)
    pairs = {
        point.step: (before, point, until - since)
        for (since, before), (until, point) in pairwise(zip(clock, points, strict=True))
        if until > since
    }
    if step not in pairs:
        nearest = min(pairs, key=lambda known: abs(known - step), default=None)
        fix = "it has none yet" if nearest is None else f"nearest valid: {nearest}"
        raise ConfigurationError(f"--at={step}: the log of {folder.name} has no such step after another; {fix}.")
    before, point, seconds = pairs[step]
    own = {name: value for each in logged if each.step == step for name, value in each.metrics.items()}
    share, timed = own.get(LOSS_SHARE, ledger.trained_share), own.get("speed/tokens_per_second")
    speed = (point.tokens - before.tokens) * share / seconds
    mfu = {formula: ledger.mfu_at(speed, formula) for formula in ("palm", "causal")}
    if timed:
        mfu |= {name: own[at] * speed / timed for name in mfu if (at := f"speed/mfu_{name}") in own}
    return ImpliedSpeed(
        step=step,
        since_step=before.step,
        loss=point.metrics[TRAIN_LOSS],
        seconds=seconds,
        tokens_per_second=speed,
        mfu_palm=mfu["palm"],
        mfu_causal=mfu["causal"],
        trained_share=share,
    )
