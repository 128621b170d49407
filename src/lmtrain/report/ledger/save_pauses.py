"""How long a run stood still for its checkpoints: copying or writing the state, and waiting for the one before."""

from dataclasses import dataclass
from pathlib import Path

from lmtrain.tracking.run_log import logged_points

COPIED, WAITED, WRITTEN = (f"checkpoint/{name}_seconds" for name in ("copy", "wait", "write"))


@dataclass(frozen=True)
class SavePauses:
    """Seconds over all checkpoints of a run; `written` ran beside training where they are written behind it."""

    num_saves: int
    copied: float
    waited: float
    written: float


def save_pauses(folder: Path) -> SavePauses | None:
    """Add up the pauses recorded in a run's folder; None: there is none."""
    metrics = [point.metrics for point in logged_points(folder)]
    copied, waited, written = ([one[name] for one in metrics if name in one] for name in (COPIED, WAITED, WRITTEN))
    return SavePauses(len(copied), sum(copied), sum(waited), sum(written)) if copied or waited else None
