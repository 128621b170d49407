"""Stop a run at a loss or gradient without a value, and name the first such step and batch; answer spikes."""

import math
from typing import Any, Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.errors import DataError, Diverged, GoBack
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from lmtrain.training.context import RunContext
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepRecord

MOST_SKIPPED: Final = 10
MOST_WITHOUT_LOSS: Final = 100  # steps one after the other: nothing is learned from them


class TrainingHealth(pl.Callback):
    """Look every `every_steps` steps at the losses and gradient norms since the last look.

    They stay on the device until then. They are sums over all ranks: every rank stops alike; exit code 3. Where spikes
    stop a run or take it back, it also looks before each checkpoint: none holds a spike.
    """

    def __init__(self, *, every_steps: int, context: RunContext) -> None:
        super().__init__()
        self._context = context
        self._interval = StepInterval(
            every_steps, last_step=context.last_step, key="callbacks.training_health.every_steps"
        )
        self._unseen: list[StepRecord] = []
        self._spikes: SpikeFilter | None = None
        self._num_skipped = 0  # one after the other, none of them finite
        self._num_without_loss = 0  # one after the other

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        self._unseen = pl_module.step_metrics.follow()
        self._spikes = pl_module.spikes

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, CausalLMModule)
        if self._interval.is_due(trainer, batch_idx):
            pl_module.step_metrics.drain()
            self._look()

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        assert isinstance(pl_module, CausalLMModule)
        if self._spikes is not None and not self._spikes.takes_back:
            pl_module.step_metrics.drain()
            self._look()

    def _look(self) -> None:
        """Judge the steps not yet judged.

        Raises:
            Diverged: A step's loss or gradient norm is not finite, and the step was made; or so are ten in
                a row, skipped or not; or it is a spike, and spikes stop the run.
            DataError: A hundred steps in a row have no token with loss.
            GoBack: It is a spike, and spikes take the run back.
        """
        unseen = self._unseen.copy()
        self._unseen.clear()
        for record in unseen:
            if record.is_spike:
                self._answer(record)
            self._num_without_loss = 0 if record.num_tokens else self._num_without_loss + 1
            if self._num_without_loss == MOST_WITHOUT_LOSS:
                raise DataError(_without_loss(record.step))
            has_loss = record.num_tokens == 0 or math.isfinite(record.loss)  # a step may hold no scored token
            if has_loss and math.isfinite(record.gradient_norm):
                self._num_skipped = 0
                continue
            self._num_skipped += 1
            if not record.was_skipped or self._num_skipped >= MOST_SKIPPED:
                raise Diverged(self._describe(record.step, record.loss, record.gradient_norm))

    def _answer(self, record: StepRecord) -> None:
        spikes = self._spikes
        assert spikes is not None
        step, loss, norm = record.step, record.loss, record.gradient_norm
        if spikes.goes_back:
            raise GoBack(
                step=step, loss=loss, gradient_norm=norm, num_batches=spikes.leave_out_batches, most=spikes.most
            )
        raise Diverged(self._describe(step, loss, norm, so="it stands out from the steps before"))

    def _describe(
        self, step: int, loss: float, gradient_norm: float, *, so: str = "training cannot recover from it"
    ) -> str:
        batch = self._context.plan.batch
        num_sequences = batch.sequences_per_step
        first = batch.number_of(step - 1) * num_sequences
        saved = [facts for facts in list_checkpoints(self._context.checkpoints_folder) if facts.step < step]
        way_back = f"the last good checkpoint is {saved[-1].path}" if saved else "there is no checkpoint before it"
        return (
            f"Step {step} has loss {loss:g} and gradient norm {gradient_norm:g}; {so}. Its "
            f"batch was windows {first} to {first + num_sequences - 1} of the run's order; {way_back}. "
            "Nearest fix: a lower optimizer.lr, or a gradient_clip_norm."
        )


def _without_loss(step: int) -> str:
    return (
        f"Steps {step - MOST_WITHOUT_LOSS + 1} to {step} have no token with loss: nothing is learned from their text. "
        "A longer batch.context_tokens reaches the assistant's words of a long conversation; `lmtrain data show` has "
        "the text of a step."
    )


def training_health_facts() -> CallbackFacts:
    """Answer spikes."""
    return CallbackFacts(answers_spikes=True)
