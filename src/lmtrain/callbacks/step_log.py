"""Write every optimizer step's metrics to the run's log, fetched from the device once a log interval."""

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import TRAIN_LOSS
from lmtrain.tracking.run_log import Point
from lmtrain.training.context import RunContext
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.step_metrics import StepRecord


class StepLog(pl.Callback):
    """Append loss (nats per token), gradient norm and learning rate, a line a step, every `every_steps` steps.

    Where spikes are skipped it also counts them, from the run's start.

    It also writes before each checkpoint, to the disk, and no step before one is ever missing, not after a power cut
    either. It belongs first in the list: the callbacks after it then find an idle device and a complete log.
    """

    def __init__(self, *, every_steps: int, context: RunContext) -> None:
        super().__init__()
        self._context = context
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.step_log.every_steps")
        self._unwritten: list[StepRecord] = []

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        self._unwritten = pl_module.step_metrics.follow()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._interval.is_due(trainer, batch_idx):
            self._write(pl_module)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._write(pl_module)
        if self._context.log is not None:
            self._context.log.sync()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._write(pl_module)

    def _write(self, module: pl.LightningModule) -> None:
        """Fetch on every rank, to keep no rank's history for ever; write on the first."""
        assert isinstance(module, CausalLMModule)
        with self._context.events.stopwatch.spending("compute"):  # this waits for the device
            module.step_metrics.drain()
        records = self._unwritten.copy()
        self._unwritten.clear()
        if self._context.log is None or not records:
            return
        num_skipped = None
        if module.spikes is not None and module.spikes.takes_back:
            num_skipped = int(module.spikes.num_skipped) - sum(record.was_skipped for record in records)
        points: list[Point] = []
        for record in records:
            metrics = {
                TRAIN_LOSS: record.loss,
                "train/gradient_norm": record.gradient_norm,
                "train/lr": record.lr,
            }
            if module.objective is not None:
                metrics |= zip(module.objective.measures, record.further, strict=True)
            if num_skipped is not None:
                num_skipped += record.was_skipped
                metrics["train/skipped_steps"] = num_skipped
            points.append(self._context.point(record.step, metrics, at=record.time))
        self._context.log.extend(points)
