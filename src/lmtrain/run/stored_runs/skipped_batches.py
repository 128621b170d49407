"""Batches that a run skips after going back from spikes: `left_out.json` in its folder, for every later start.

Windows are counted from 0 in the run's order, as everywhere.
"""

import time
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.batches import BatchPlan
from lmtrain.errors import Diverged, GoBack
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.atomic_files import read_json, write_json
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.checkpointing.checkpoints import set_aside_after

FILE: Final = "left_out.json"


def read_spikes(run: Path) -> list[dict[str, Any]]:
    """Return each spike that took a run back, with its batches and windows, oldest first."""
    found = read_json(run / FILE).get("spikes", [])
    return found if isinstance(found, list) else []


def without_skipped(batch: BatchPlan, run: Path) -> BatchPlan:
    """Return the batch plan without the batches that the run skips."""
    firsts = [(int(spike["first_batch"]), int(spike["num_batches"])) for spike in read_spikes(run)]
    return batch.without(number for first, count in firsts for number in range(first, first + count))


def skip_spike(job: Job, batch: BatchPlan, spike: GoBack) -> str:
    """Note a spike's batches, set later checkpoints aside, begin the next attempt, and return the line to print.

    Only one rank calls this.

    Raises:
        Diverged: The run has gone back as often as it may.
    """
    earlier = read_spikes(job.folder)
    first = batch.number_of(spike.step - 1)
    windows = [first * batch.sequences_per_step, (first + spike.num_batches) * batch.sequences_per_step - 1]
    if len(earlier) >= spike.most:
        raise Diverged(
            f"{spike}, and the run has gone back {len(earlier)} times already (spikes.most={spike.most}). Its batch "
            f"was windows {windows[0]} to {windows[1]} of the run's order; try a lower optimizer.lr."
        )
    note = {
        "step": spike.step,
        "loss": str(spike.loss),
        "gradient_norm": str(spike.gradient_norm),
        "first_batch": first,
        "num_batches": spike.num_batches,
        "windows": windows,
        "time": time.time(),
    }
    write_json(job.folder / FILE, {"spikes": [*earlier, note]})
    checkpoints = job.folder / "checkpoints"
    set_aside_after(checkpoints, spike.step - 1)
    folder = RunFolder(job.folder, root=Path(job.root))
    before = folder.accepted_attempt()
    text = (before / "config.yaml").read_text() if before else ""
    job.save(folder.start_attempt(text, job.overrides) / "job.json")
    place = "the checkpoint before it" if any(checkpoints.glob("step_*")) else "the start, as there is no checkpoint"
    return f"{spike}: back to {place}, without windows {windows[0]} to {windows[1]} of the run's order"
