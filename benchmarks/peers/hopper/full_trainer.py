"""The full Trainer at a case: every default callback, and MLflow on where it is installed.

On a GPU no step between log points may wait for the device: torch ends the run at the first that does.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from typing_extensions import override

from benchmarks.harness.hopper.loops import LOG_EVERY_STEPS
from benchmarks.harness.train_step.task import Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.hopper.own_run import make_run
from benchmarks.peers.train_step.trainer import MORE, EndOfStep
from lmtrain.tracking.run_folder import RunFolder

HAS_MLFLOW = find_spec("mlflow") is not None
GIVEN = f"every default callback, MLflow {'on sqlite' if HAS_MLFLOW else 'not installed: off'}, metrics every 10 steps"


VALIDATION_TOKENS = 4_000  # of 128,256 ids made up, 256 are bytes of text, without which there is no score


class StrictEndOfStep(EndOfStep):
    """Ends a step as the others do, and makes it an error to wait for the device in the next, from fetching its batch.

    The first steps compile and allocate; those with a log point read what they log.
    """

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        torch.cuda.set_sync_debug_mode("default")
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        torch.cuda.set_sync_debug_mode("default" if may_wait(trainer.global_step + 1) else "error")


def may_wait(step: int) -> bool:
    """Tell whether the loop may wait for the device in a step, from 1."""
    return step <= LOG_EVERY_STEPS or step % LOG_EVERY_STEPS == 0


def run(task: Task, turns: Turns) -> None:
    """Train."""
    more = [word for word in MORE if not word.startswith("callbacks.validation.max_tokens")]
    more += [f"callbacks.validation.max_tokens={VALIDATION_TOKENS}", *([] if HAS_MLFLOW else ["logger=none"])]
    job, built = make_run(task, name="trainer", more=tuple(more))
    turns.say(num_parameters=sum(parameter.numel() for parameter in built.module.language_model.parameters()))
    if HAS_MLFLOW:
        tracker = job.config.logger.build()
        tracker.start(RunFolder(job.folder, root=Path(job.root)))
        turns.watch(tracker._process.pid)  # noqa: SLF001  # MLflow's own process, timed separately
    callbacks: list[pl.Callback] = built.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]  # a list
    callbacks.append((StrictEndOfStep if task.device == "cuda" else EndOfStep)(turns))
    built.trainer.fit(built.module, datamodule=built.datamodule)
