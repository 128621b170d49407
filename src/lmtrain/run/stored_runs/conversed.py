"""Whether a run learned from conversations: its data's record, and that of the runs that it began from."""

from pathlib import Path
from typing import Any

from lmtrain.errors import LMTRAIN_ERRORS
from lmtrain.run.stored_runs.checkpoint_source import find_job, run_of
from lmtrain.run.stored_runs.job import StoredJob
from lmtrain.storage import foreign_json

KINDS = ("auto", "never", "must")  # of resume: no other run's


def has_conversed(run: Path, job: StoredJob) -> bool:
    """Tell whether a run or one before it learned from conversations; true also where the record does not say."""
    seen = set[Path]()
    while run.resolve() not in seen:
        seen.add(run.resolve())
        if not _is_text(run, job):
            return True
        resume = job.config.get("resume")
        before = job.config.get("init_from") or (resume if resume not in KINDS else None)
        if before is None:
            return False
        try:
            run = run_of(Path(before))
            job = find_job(run, key="init_from")
        except (*LMTRAIN_ERRORS, TypeError):  # an imported folder, or gone
            return True
    return False


def _is_text(run: Path, job: StoredJob) -> bool:
    """Tell whether all of the data is known to be without the marks of an assistant's words."""
    try:
        data: Any = foreign_json.read(run / "dataset.json")
        shards = [shard for split in data["splits"].values() for shard in split["shards"]]
        return "sources" not in job.config["data"]["folder"] and not any(shard.get("mask_sha256") for shard in shards)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
