"""Run folders with points, followed by a tracker to their end, for its tests."""

from pathlib import Path
from typing import Any

from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status
from tests.points import append_point


def follow_attempt(tracking: Any, path: Path, losses: dict[int, float], *, resumed_from: int = -1) -> bool:
    """Train an attempt: drop the points after `resumed_from`, append one a step, then finish."""
    folder = RunFolder(path)
    folder.create()
    log = RunLog(path)
    log.truncate_after(resumed_from)
    tracking.start(folder)
    for step, loss in losses.items():
        append_point(log, step, 100 * step, {"train/loss": loss}, time=1000.0 + step)
        if step % 2 == 0:
            append_point(log, step, 100 * step, {"validation/bits_per_byte": loss / 2}, time=1000.5 + step)
    log.close()
    return tracking.finish(Status("FINISHED", exit_code=0))
