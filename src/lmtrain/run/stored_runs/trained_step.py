"""The rows of a past step of a run: the order of the data is arithmetic, so nothing was stored for them.

`G sequences per step, T context tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lmtrain.accounting.batches import BatchPlan
from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.data.rows import RowBatch
from lmtrain.errors import ConfigurationError, DataError
from lmtrain.report.runs.attempts import read_attempts
from lmtrain.run.run_config import RunConfig, read_config
from lmtrain.run.stored_runs.find_run import checked_part, find_job
from lmtrain.run.stored_runs.job import StoredJob, load_job
from lmtrain.run.stored_runs.resume import phases_of
from lmtrain.run.stored_runs.skipped_batches import without_skipped
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

    `config` is that of its attempt. `loss` is the training loss of that step in nats per token, None if it was not
    logged; `data` names the data.
    `sources` [G] are the rows' sources in a mixture, empty for one source.
    """

    run: Path
    step: int
    config: RunConfig
    loss: float | None
    batch: BatchPlan
    numbers: NDArray[np.int64]
    rows: RowBatch
    tokenizer: Tokenizer
    data: str
    sources: Sequence[str] = ()


def trained_step(run: Path, step: int, *, data: Path | None = None, allowed: Sequence[str] = ()) -> TrainedStep:
    """Return a step's rows; `data` is the present folder of its prepared data, None: where it was.

    A row's rank and micro-batch are those of the newest attempt; the rows depend on neither.
    """
    attempt, job = _attempt_of(run, step)
    config = read_config(job.config, allowed=allowed)
    batch, loss = without_skipped(config.divided(config.batch), run), _logged_loss(run, step)
    module = _datamodule(job, batch, attempt, run=run, data=data, allowed=allowed)
    horizon = read_json(run / "plan.json").get("horizon")
    module.total_steps = int(horizon.get("steps") or 0) if isinstance(horizon, dict) else 0
    module.go_on(phases_of(attempt), step=step)
    numbers, rows, sources = module.rows_of_step(step - 1)
    return TrainedStep(
        run=run,
        step=step,
        config=config,
        loss=loss,
        batch=batch,
        numbers=numbers,
        rows=rows,
        tokenizer=load_tokenizer(module.dataset.tokenizer_folder),
        data=", ".join(str(dataset.folder) for dataset in module.mixture.datasets.values()),
        sources=sources,
    )


def first_rows(config: RunConfig, batch: BatchPlan, folder: str | None, *, num_steps: int) -> RowBatch:
    """Return the rows of a config's first step, from the folder of its prepared data, or those of its mixture."""
    node = config.data.checked(config.allowed)
    if folder is not None:
        node = node.changed(folder={"_target_": PREPARED, "path": folder})
    module: TokenDataModule = node.build(batch=batch, seed=config.seed)
    module.total_steps = num_steps
    return module.rows_of_step(0).rows


def _attempt_of(run: Path, step: int) -> tuple[Path, StoredJob]:
    """Return the attempt that trained a step, and its job: a later one may have other data, seed or packing."""
    job = find_job(run, key="RUN")
    numbers = [each.number for each in read_attempts(run) if each.readings and each.readings[0].step < step]
    attempt = run / "attempts" / str(numbers[-1] if numbers else 0)
    file = attempt / "job.json"
    return attempt, load_job(file) if file.is_file() else job


def _logged_loss(run: Path, step: int) -> float | None:
    """Return the loss logged at a step."""
    last, loss = 0, None
    for point in logged_points(run):
        last = max(last, point.step)
        if point.step == step:
            loss = point.metrics.get(TRAIN_LOSS, loss)
    if not last:
        raise ConfigurationError(f"--step {step}: {run} has no step in its log yet; train it first.")
    if not 1 <= step <= last:
        raise ConfigurationError(f"--step: must be from 1 to {last:,} for {run}, got {step}.")
    return loss


def _datamodule(
    job: StoredJob, batch: BatchPlan, attempt: Path, *, run: Path, data: Path | None, allowed: Sequence[str]
) -> TokenDataModule:
    noted: dict[str, Any] = read_json(attempt / DATA_OF_ATTEMPT)
    node = checked_part(job, "data", allowed=allowed)
    if "folder" in node:
        folder = data or Path(str(noted.get("data", "an unknown folder")))
        if not folder.is_dir():
            raise DataError(f"the data of {run} is no longer in {folder}; pass its folder with --data FOLDER.")
        node = node.changed(folder={"_target_": PREPARED, "path": str(folder)})
    elif data is not None:
        raise ConfigurationError(f"--data {data}: {run} mixes several folders, read where they were; leave it out.")
    module: TokenDataModule = node.build(batch=batch, seed=job.config["seed"])
    found, expected = module.dataset.manifest.fingerprint, noted.get("fingerprint")
    if expected not in (None, found):
        raise DataError(
            f"{module.dataset.folder} is not the data of that step of {run}: its fingerprint is {found[:12]}, not "
            f"{str(expected)[:12]}; pass the folder with --data FOLDER."
        )
    return module
