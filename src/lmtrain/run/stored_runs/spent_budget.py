"""The time of a run before its next start, and its end at a checkpoint: of its budget, or by early stopping."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmtrain.accounting.budgets import Horizon, RunSoFar
from lmtrain.accounting.observed.metric_names import VALIDATION_TOKENS
from lmtrain.accounting.observed.time_accounts import spent
from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.report.runs.attempts import last_row_of, read_attempts
from lmtrain.run.schema.facts import facts_of
from lmtrain.run.stored_runs.checkpoint_source import find_job, run_of
from lmtrain.run.stored_runs.job import Job
from lmtrain.run.stored_runs.resume import is_own
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.events import EARLY_STOPPING
from lmtrain.tracking.run_log import newest_with
from lmtrain.training.checkpointing.checkpoints import CheckpointFacts


def run_so_far(job: Job, checkpoint: CheckpointFacts | None, *, before: int | None = None) -> RunSoFar:
    """Return the steps of a checkpoint and the tokens of its validations, and the time of the run's attempts.

    Those `before` an attempt of this number are counted; None: all.
    """
    num_ranks = job.config.num_ranks
    attempts = [each for each in read_attempts(job.folder) if before is None or each.number < before]
    earlier = spent(attempts, num_devices=num_ranks)
    return RunSoFar(
        steps=checkpoint.step if checkpoint else 0,
        seconds=earlier.seconds,
        device_seconds=earlier.device_seconds / num_ranks,
        read_tokens=_read_tokens(job, checkpoint) if checkpoint else None,
    )


def _read_tokens(job: Job, checkpoint: CheckpointFacts) -> int | None:
    """Return the tokens of the newest validation at a checkpoint; None where others are asked for now."""
    folder = run_of(checkpoint.path)
    try:
        before = find_job(folder, key="resume").config.get("callbacks") or {}
    except ConfigurationError:  # a checkpoint without its run
        return None
    for name, node in job.config.callbacks.items():
        facts = facts_of(node.values, CallbackFacts, allowed=job.config.allowed, key=node.key)
        if facts is not None and facts.reads and _asked(before.get(name) or {}) == _asked(node.values):
            log = folder / "metrics.jsonl"
            found = newest_with(log, VALIDATION_TOKENS, until=checkpoint.step) if log.is_file() else None
            return round(found.metrics[VALIDATION_TOKENS]) if found else None
    return None


def _asked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) for name in ("_target_", "split", "max_tokens")}


def nothing_left(horizon: Horizon, checkpoint: CheckpointFacts, *, folder: Path, spent_seconds: float) -> str | None:
    """Return the line on a budget that ends exactly at a checkpoint, None where steps are left.

    `spent_seconds` of a budget of time are those of the earlier attempts of the run in `folder`.

    Raises:
        ConfigurationError: The checkpoint is already past the budget.
    """
    limit = horizon.seconds
    has_time = limit is None or (spent_seconds < limit and not _ended_by_time(horizon, checkpoint, folder))
    if has_time and (horizon.most_steps is None or checkpoint.step < horizon.most_steps):
        return None
    where, fix = _end_and_fix(horizon, checkpoint, folder)
    if has_time and checkpoint.step > horizon.steps:
        key = f"budget.{horizon.limited_by}"
        msg = f"{key} ends the run at step {horizon.steps}, which is already spent: {where}; {fix}."
        raise ConfigurationError(msg)
    return f"Nothing left to do: {where}, the end of its budget. To go on, {fix}."


def ended_early(job: Job, checkpoint: CheckpointFacts) -> str | None:
    """Return the line on a run that its validations ended, where the same callback judges them; None otherwise."""
    ended = last_row_of(job.folder, EARLY_STOPPING)
    if ended is None or not is_own(checkpoint, job.folder) or ended["step"] != checkpoint.step:
        return None
    before = find_job(job.folder, key="run.name").config.get("callbacks") or {}
    for name, node in job.config.callbacks.items():
        facts = facts_of(node.values, CallbackFacts, allowed=job.config.allowed, key=node.key)
        if facts is not None and facts.judges and before.get(name) == node.values:
            where = f"{job.folder} is at step {checkpoint.step}, where {node.key} ended it"
            further = f"a lower {node.key}.stop_at" if ended.get("reached_stop_at") else f"more {node.key}.patience"
            return f"Nothing left to do: {where}. To go on, {node.key}=null or {further}."
    return None


def _ended_by_time(horizon: Horizon, checkpoint: CheckpointFacts, folder: Path) -> bool:
    """Tell whether the same budget of time ended the run here: at the last step within it, with some seconds left."""
    before: Any = read_json(folder / "plan.json").get("horizon", {})
    now = {"steps": checkpoint.step, "seconds": horizon.seconds}
    return is_own(checkpoint, folder) and before.items() >= now.items()


def _end_and_fix(horizon: Horizon, checkpoint: CheckpointFacts, folder: Path) -> tuple[str, str]:
    """Say whose checkpoint is at the end of the budget, and the ways on from there."""
    at = f"at step {checkpoint.step} ({format_quantity(checkpoint.tokens)} tokens)"
    if is_own(checkpoint, folder):
        fix = "raise the budget to train on, or start anew with another run.name or resume=never"
        return f"{folder} is {at}", fix
    fix = (
        f"raise budget.{horizon.limited_by} above it; without that {folder} trains nothing and has no "
        f"checkpoint, and the model is that of `lmtrain generate {checkpoint.path.parents[1]}`"
    )
    return f"{checkpoint.path} is {at}", fix
