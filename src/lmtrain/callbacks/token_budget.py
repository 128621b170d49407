"""End a run at the first step at or past its budget, whose steps all have the planned number of micro-batches."""

from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.errors import ConfigurationError
from lmtrain.training.context import RunContext


class TokenBudget(pl.Callback):
    """Stop at the run's last step, the budget in whole steps; the Trainer itself has no limit.

    A run resumed with its budget spent trains no step.
    """

    def __init__(self, *, context: RunContext) -> None:
        super().__init__()
        self._last_step = context.last_step
        self._micro_steps = context.plan.batch.accumulation_micro_steps

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_spent(trainer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.accumulate_grad_batches != self._micro_steps:
            raise ConfigurationError(
                f"A callback set accumulate_grad_batches={trainer.accumulate_grad_batches}, and a step of this run is "
                f"planned and counted with {self._micro_steps}; leave it out, and set batch.tokens_per_step instead."
            )
        self._stop_if_spent(trainer)

    def _stop_if_spent(self, trainer: pl.Trainer) -> None:
        if trainer.global_step >= self._last_step.steps:
            trainer.should_stop = True


def token_budget_facts() -> CallbackFacts:
    """End the run."""
    return CallbackFacts(ends_at_budget=True)
