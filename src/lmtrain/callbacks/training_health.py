"""Stop training at a loss or gradient that is not finite, and name the first such step and batch; answer spikes."""

import math
from typing import Any, Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.errors import DataError, Diverged, GoBack
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepRecord

MOST_SKIPPED: Final = 10
MOST_WITHOUT_LOSS: Final = 100  # steps one after the other: nothing is learned from them


class TrainingHealth(RunCallback):
    """Look every `every_steps` steps at the losses and gradient norms since the last look.

    They stay on the device until then. They are sums over all ranks, so every rank stops at the same step; exit code 3.
    If spikes stop a run or take it back, it also looks before each checkpoint: none holds a spike.
    """

    def __init__(self, *, every_steps: int = 10, context: RunContext | None = None) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.training_health.every_steps"))
        self._spikes: SpikeFilter | None = None
        self._num_skipped = 0  # one after the other, none of them finite
        self._num_without_loss = 0  # one after the other

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_steps = self.steps_of(trainer, pl_module).follow()
        self._spikes = pl_module.spikes if isinstance(pl_module, CausalLMModule) else None

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the steps not yet judged."""
        for record in self._take_steps():
            if record.is_spike:
                self._answer(record)
            self._num_without_loss = 0 if record.num_tokens else self._num_without_loss + 1
            if self._num_without_loss == MOST_WITHOUT_LOSS:
                raise DataError(
                    f"Steps {record.step - MOST_WITHOUT_LOSS + 1} to {record.step} have no token with loss: nothing is "
                    "learned from their text. Raise batch.context_tokens, or look at `lmtrain data show`."
                )
            has_loss = record.num_tokens == 0 or math.isfinite(record.loss)  # a step may hold no scored token
            if has_loss and math.isfinite(record.gradient_norm):
                self._num_skipped = 0
                continue
            self._num_skipped += 1
            if not record.was_skipped or self._num_skipped >= MOST_SKIPPED:
                raise Diverged(self._describe(record, "training cannot recover from it"))

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._spikes is not None and not self._spikes.takes_back:
            self.on_due_step(trainer, pl_module)

    def _answer(self, record: StepRecord) -> None:
        spikes = self._spikes
        assert spikes is not None
        if spikes.goes_back:
            raise GoBack(
                step=record.step,
                loss=record.loss,
                gradient_norm=record.gradient_norm,
                num_batches=spikes.leave_out_batches,
                most=spikes.most,
            )
        raise Diverged(self._describe(record, "it stands out from the steps before"))

    def _describe(self, record: StepRecord, why: str) -> str:
        """Return the step, its values, in a run also its windows, and the last checkpoint before it."""
        windows = ""
        if self.context is not None:
            batch = self.context.plan.batch
            first = batch.number_of(record.step - 1) * batch.sequences_per_step
            windows = f" Its batch was windows {first} to {first + batch.sequences_per_step - 1} of the run's order."
        saved = [one for one in list_checkpoints(self.run.folder / "checkpoints") if one.step < record.step]
        way_back = f"The last good checkpoint is {saved[-1].path}" if saved else "No checkpoint was saved before it"
        return (
            f"Step {record.step} has loss {record.loss:g} and gradient norm {record.gradient_norm:g}; {why}.{windows} "
            f"{way_back}. Lower optimizer.lr, or set gradient_clip_norm."
        )


TRAINING_HEALTH_FACTS: Final = CallbackFacts(answers_spikes=True)
