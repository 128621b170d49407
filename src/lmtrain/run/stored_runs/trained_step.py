"""The rows of a past step of a run: its order is arithmetic, so nothing was kept for them.

`G sequences of a step, T context tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.data.rows import RowBatch
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.stored_runs.checkpoint_source import checked_part, find_job
from lmtrain.run.stored_runs.job import StoredJob, load_job
from lmtrain.run.stored_runs.left_out import as_first_trained, without_left_out
from lmtrain.run.stored_runs.phases_read import phases_of
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tokenizers.loading import load_tokenizer
from lmtrain.tracking.atomic_files import read_json
from lmtrain.tracking.run_folder import DATA_OF_ATTEMPT
from lmtrain.tracking.run_log import logged_points
from lmtrain.training.datamodule import TokenDataModule

PREPARED: Final = "lmtrain.data.shards.existing_folder"


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """A step (from 1) of a run: `numbers` [G] of its rows, the rows [G, T + 1], and how they were divided.

    `loss` is the training loss of that step in nats a token, None where it was not logged; `data` names the data. Of a
    step that was trained again without its batch, `is_left_out` has the batch that it had at first. `sources` [G] are
    the rows' of a mixture, none of one source.
    """

    run: Path
    step: int
    loss: float | None
    batch: BatchPlan
    numbers: NDArray[np.int64]
    rows: RowBatch
    tokenizer: Tokenizer
    data: str
    is_left_out: bool = False
    sources: Sequence[str] = ()


def trained_step(
    run: Path, step: int, *, data: Path | None = None, allowed: Sequence[str] = (), left_out: bool = False
) -> TrainedStep:
    """Return a step's rows; `data` is the folder of its prepared data now, None: where it was.

    `left_out`: those that the step had before a spike took the run back. A row's rank and micro-batch are those of the
    newest attempt; a step's rows depend on neither.

    Raises:
        ConfigurationError: No run is there, it has not trained the step, or no spike there took it back.
        DataError: Its data is gone or has changed.
    """
    attempt, job = _attempt_of(run, step)
    config = read_config(job.config, allowed=allowed)
    batch = config.divided(replace(config.batch, micro_batch_sequences=_sequences(config)))
    batch, loss = as_first_trained(batch, run, step) if left_out else _as_kept(batch, run, step)
    module = _datamodule(job, batch, trained_on=_TrainedOn.read(run, attempt), data=data, allowed=allowed)
    module.total_steps = _horizon_steps(run)
    module.go_on(phases_of(attempt), step=step)
    numbers, rows, sources = module.rows_of_step(step - 1)
    return TrainedStep(
        run=run,
        step=step,
        loss=loss,
        batch=batch,
        numbers=numbers,
        rows=rows,
        tokenizer=load_tokenizer(module.dataset.tokenizer_folder),
        data=", ".join(str(dataset.folder) for dataset in module.mixture.datasets.values()),
        is_left_out=left_out,
        sources=sources,
    )


def _attempt_of(run: Path, step: int) -> tuple[Path, StoredJob]:
    """Return the attempt that trained a step, and its job: a later one may have other data, seed or packing, by name.

    The last accepted one's job, where the accounts of the run do not tell.
    """
    job = find_job(run, key="RUN")
    numbers = [each.number for each in read_attempts(run) if each.readings and each.readings[0].step < step]
    attempt = run / "attempts" / str(numbers[-1] if numbers else 0)
    file = attempt / "job.json"
    return attempt, replace(load_job(file), allowed_targets=[]) if file.is_file() else job


def _as_kept(batch: BatchPlan, run: Path, step: int) -> tuple[BatchPlan, float | None]:
    """Return the batch without those left out, and the loss logged at a step."""
    last, loss = _logged(run, step)
    if not 1 <= step <= last:
        raise ConfigurationError(
            f"--step {step}: {run} has trained steps 1 to {last:,}; nearest valid: {min(max(step, 1), max(last, 1))}."
            if last
            else f"--step {step}: {run} has no step in its log yet; train it first."
        )
    return without_left_out(batch, run), loss


def _logged(run: Path, step: int) -> tuple[int, float | None]:
    """Return the last step of a run's log, and the loss logged at a step."""
    last, loss = 0, None
    for point in logged_points(run):
        last = max(last, point.step)
        if point.step == step:
            loss = point.metrics.get(TRAIN_LOSS, loss)
    return last, loss


def _sequences(config: RunConfig) -> int | None:
    """Return the sequences of a micro-batch; a number found by `auto` was not kept, and stands for no division."""
    asked = config.batch.micro_batch_sequences
    return None if asked == "auto" else asked


def _horizon_steps(run: Path) -> int:
    """Return the planned steps, the length of a mixture's schedule of weights."""
    horizon = read_json(run / "plan.json").get("horizon")
    return int(horizon.get("steps") or 0) if isinstance(horizon, dict) else 0


@dataclass(frozen=True, kw_only=True)
class _TrainedOn:
    """The data of an attempt of a run: its folder then, and its fingerprint where one was noted."""

    run: Path
    folder: Path
    fingerprint: str | None

    @classmethod
    def read(cls, run: Path, attempt: Path) -> Self:
        """Read an attempt's notes, or the run's newest data, where an older version of lmtrain noted no more."""
        noted = read_json(attempt / DATA_OF_ATTEMPT)
        facts = noted or read_json(run / "run.json") | read_json(run / "dataset.json")
        fingerprint = facts.get("fingerprint")
        folder = Path(str(facts.get("data", "an unknown folder")))
        return cls(run=run, folder=folder, fingerprint=None if fingerprint is None else str(fingerprint))


def _datamodule(
    job: StoredJob, batch: BatchPlan, *, trained_on: _TrainedOn, data: Path | None, allowed: Sequence[str]
) -> TokenDataModule:
    node, run = checked_part(job, "data", allowed=allowed), trained_on.run
    if "folder" in node:
        folder = data or trained_on.folder
        if not folder.is_dir():
            raise DataError(f"the data of {run} is no longer in {folder}; name its folder with --data FOLDER.")
        node = node.changed(folder={"_target_": PREPARED, "path": str(folder)})
    elif data is not None:
        raise ConfigurationError(f"--data {data}: {run} mixes several folders, read where they were; leave it out.")
    module: TokenDataModule = node.build(batch=batch, seed=job.config["seed"])
    found, wanted = module.dataset.manifest.fingerprint, trained_on.fingerprint
    if wanted not in (None, found):
        raise DataError(
            f"{module.dataset.folder} is not the data of that step of {run}: its fingerprint is "
            f"{found[:12]}, not {wanted[:12]}; name the folder with --data FOLDER."
        )
    return module
