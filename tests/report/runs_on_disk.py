"""Run folders with a log, a plan and a state, written without a training."""

import json
import os
from pathlib import Path
from typing import Any

from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.status import Status, write_status

POINTS = (
    Point(10.0, 0, 0, {"validation/bits_per_byte": 3.5}),
    Point(11.0, 1, 100, {"train/loss": 5.5, "train/lr": 0.01}),
    Point(12.0, 2, 200, {"train/loss": 4.25, "train/lr": 0.02}),
    Point(12.0, 2, 200, {"speed/tokens_per_second": 1234.5}),
    Point(13.0, 2, 200, {"time/compute_share": 0.5}),
)


def write_run(folder: Path, *, status: Status | None = None, changed_at: float = 1000.0, **settings: Any) -> Path:
    """Write a run of two of nine steps, and the settings as its config."""
    run = RunFolder(folder)
    run.create()
    attempt = run.start_attempt(json.dumps(settings), [])
    run.accept_newest_attempt()
    assert (attempt / "versions.json").is_file()
    log = RunLog(folder)
    log.extend(POINTS)
    log.close()
    (folder / "plan.json").write_text(json.dumps({"horizon": {"steps": 9}}))
    write_status(folder, status or Status("FINISHED", 0, step=2))
    os.utime(folder / "metrics.jsonl", (changed_at, changed_at))
    return folder
