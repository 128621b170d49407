"""The first line of a resumed run: the step, and the settings changed since its checkpoint was written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lmtrain.accounting.quantities import format_quantity, typed_hours, unit_of
from lmtrain.run.stored_runs.job import Job, flatten, load_job
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts

OF_THE_COMMAND: Final = ("run.", "resume", "logger.")  # where it is written and shown, not how it trains
MOST: Final = 8  # settings named in one line


def going_on_line(job: Job, checkpoint: CheckpointFacts) -> str:
    """Return the line of a run resumed from its own checkpoint."""
    line = f"going on from step {checkpoint.step:,} ({format_quantity(checkpoint.tokens)} tokens)"
    before = _writer_of(checkpoint, RunFolder(job.folder))
    if before is None or not (before / "job.json").is_file():
        return line
    changes = changed_settings(load_job(before / "job.json").config, job.config.values)
    if not changes:
        return line
    more = f" and {len(changes) - MOST} more" if len(changes) > MOST else ""
    return f"{line}; changed: {', '.join(changes[:MOST])}{more}"


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return each differing setting of two configs, as KEY OLD -> NEW; a missing one is null."""
    old, new = _leaves(before), _leaves(now)
    differing = [key for key in {**new, **old} if old.get(key) != new.get(key) and not key.startswith(OF_THE_COMMAND)]
    return [f"{key} {_shown(key, old.get(key))} -> {_shown(key, new.get(key))}" for key in differing]


def _writer_of(checkpoint: CheckpointFacts, folder: RunFolder) -> Path | None:
    """Return the attempt that wrote a checkpoint, of another run perhaps; of one that does not say, the last accepted.

    The newest attempt of the run's own folder, still to be accepted, is the one to compare.
    """
    if checkpoint.attempt is not None:
        return checkpoint.path.parents[1] / "attempts" / str(checkpoint.attempt)
    earlier, accepted = folder.attempts()[:-1], folder.accepted_attempt()
    return accepted if accepted in earlier else earlier[-1] if earlier else None


def _leaves(config: Mapping[str, Any]) -> dict[str, Any]:
    leaves = {key: leaf for name, value in config.items() for key, leaf in flatten(value, name).items()}
    return {key: json.dumps(leaf) if isinstance(leaf, tuple) else leaf for key, leaf in leaves.items()}  # as lists are


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if unit_of(key) == "hours" and isinstance(value, int | float):
        return typed_hours(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return format_quantity(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
