"""The phases of a mixture as an attempt of a run placed them: the order of its text, left alone by another budget."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lmtrain.data.interleave import PhasesRead, Placed
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT, PHASES
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts


def phases_read(checkpoint: CheckpointFacts | None) -> PhasesRead | None:
    """Return the phases before a checkpoint; None where its attempt noted none, as of data of one phase."""
    if checkpoint is None or checkpoint.attempt is None:
        return None
    phases = phases_of(checkpoint.path.parents[1] / "attempts" / str(checkpoint.attempt))
    return PhasesRead(phases=phases, step=checkpoint.step) if phases else None


def phases_of(attempt: Path) -> list[Placed]:
    """Return an attempt's phases as noted; none where it noted none, or the file was damaged."""
    noted = read_json(attempt / DATA_OF_ATTEMPT).get(PHASES)
    try:
        rows = [(int(start), tuple(map(float, weights))) for start, weights in cast("list[tuple[int, Any]]", noted)]
    except (TypeError, ValueError, OverflowError):
        return []
    starts = [start for start, _ in rows]
    is_whole = starts[:1] == [0] and starts == sorted(starts) and all(map(_is_share, (each for _, each in rows)))
    return rows if is_whole else []


def _is_share(weights: Sequence[float]) -> bool:
    return all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
