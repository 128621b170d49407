"""Bytes counted by a run whose ranks meet now and then, beside those planned."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtrain.tracking.run_log import logged_points

SENT: Final = "communication/sent_bytes"


@dataclass(frozen=True, kw_only=True)
class SentBytes:
    """Bytes of deltas that left the first worker by the last count, and those planned for the same steps."""

    counted: float
    planned: float


def sent_bytes(folder: Path, plan: dict[str, Any]) -> SentBytes | None:
    """Return the bytes of a run's log; None where its ranks meet each step, or counted none."""
    planned: dict[str, Any] = plan.get("communication") or {}
    if all(group.get("every_steps", 1) == 1 for group in planned.get("groups", [])):
        return None
    counts = [point for point in logged_points(folder) if SENT in point.metrics]
    if not counts:
        return None
    return SentBytes(counted=counts[-1].metrics[SENT], planned=counts[-1].step * planned["bytes_per_step"])
