"""Log every optimizer step's loss, gradient norm and learning rate, fetched from the device once per interval."""

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.tracking.run_log import Point
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.step_metrics import StepRecord


class StepLog(RunCallback):
    """Log `train/loss` (nats per token), `train/gradient_norm` and `train/lr` of each step, every `every_steps` steps.

    With spikes skipped it also counts them, from the run's start. Of a person's own module, a run's log also has what
    the module logged last by `self.log`.

    A run's log is also written, to the disk, before each checkpoint: no step before one is ever missing, not after a
    power cut either. It belongs first in the list: the callbacks after it then find an idle device and a complete log.
    """

    def __init__(self, *, every_steps: int = 10, context: RunContext | None = None) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.step_log.every_steps"))

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_steps = self.steps_of(trainer, pl_module).follow()

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Fetch on every rank, so that no rank keeps its history for ever; write on the first."""
        with self.run.events.stopwatch.spending("compute"):  # this waits for the device
            records = self._take_steps()
        if not records:
            return
        measured = list(zip(records, _metrics(records, pl_module), strict=True))
        if self.context is not None and not isinstance(pl_module, CausalLMModule):  # its own `self.log`, for our log
            measured[-1][1].update({name: float(value) for name, value in trainer.logged_metrics.items()})
        if self.context is None:
            for record, metrics in measured:
                self.run.append(record.step, metrics)
        elif self.context.log is not None:
            points: list[Point] = [
                self.context.point(record.step, metrics, at=record.time) for record, metrics in measured
            ]
            self.context.log.extend(points)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.on_due_step(trainer, pl_module)
        if self.context is not None and self.context.log is not None:
            self.context.log.sync()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.on_due_step(trainer, pl_module)


def _metrics(records: list[StepRecord], module: pl.LightningModule) -> list[dict[str, float]]:
    """Return the metrics of each step: of a run's own module also an objective's, and the number of skipped steps."""
    own = module if isinstance(module, CausalLMModule) else None
    num_skipped = None
    if own is not None and own.spikes is not None and own.spikes.takes_back:
        num_skipped = int(own.spikes.num_skipped) - sum(record.was_skipped for record in records)
    found: list[dict[str, float]] = []
    for record in records:
        metrics = {TRAIN_LOSS: record.loss, "train/gradient_norm": record.gradient_norm, "train/lr": record.lr}
        if own is not None and own.objective is not None:
            metrics |= zip(own.objective.measures, record.further, strict=True)
        if num_skipped is not None:
            num_skipped += record.was_skipped
            metrics["train/skipped_steps"] = num_skipped
        found.append(metrics)
    return found
