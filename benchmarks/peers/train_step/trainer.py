"""Our full Trainer: every default callback and MLflow on.

Validation, checkpoints and samples happen at the end of the run, which no turn reaches: they are work, not overhead.
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from benchmarks.harness.train_step.task import Architecture, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.ours import make_job, make_run
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.training.intervals import is_step_end

GIVEN = "every default callback, MLflow on sqlite, metrics every 10 steps"
MORE = [
    "callbacks.validation.num_passes=null",
    "callbacks.validation.max_tokens=200",
    "callbacks.checkpoint.every_seconds=null",
    "callbacks.text_samples.num_new_tokens=1",
]


class EndOfStep(pl.Callback):
    """Says that a step is over; comes after all other callbacks."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_step_end(trainer, batch_idx):
            self._turns.step()


def run(task: Task, turns: Turns, *, architecture: Architecture) -> None:
    """Train."""
    job = make_job(task, MORE, name=f"trainer-{architecture}", architecture=architecture)
    built = make_run(job)
    turns.say(num_parameters=sum(parameter.numel() for parameter in built.module.language_model.parameters()))
    tracker = job.config.logger.build()
    tracker.start(RunFolder(job.folder, root=Path(job.root)))
    turns.watch(tracker._process.pid)  # noqa: SLF001  # MLflow's own process, timed separately
    built.trainer.callbacks.append(EndOfStep(turns))  # pyright: ignore[reportAttributeAccessIssue]  # a list, always
    built.trainer.fit(built.module, datamodule=built.datamodule)
