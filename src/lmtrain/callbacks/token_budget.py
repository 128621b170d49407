"""End training at the first step at or past a budget of tokens or steps."""

import math
from typing import Any, Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.quantities import parse_whole
from lmtrain.errors import ConfigurationError
from lmtrain.training.context import RunCallback, RunContext, count_tokens


class TokenBudget(RunCallback):
    """Stop after the step in which `tokens` tokens, or `steps` steps, are reached, whichever is first.

    A run has its own budget. A quantity may be a text: "2M".

    Tokens are counted over all ranks. A training resumed with its budget spent trains no step.

    Example:
        >>> trainer = lightning.Trainer(max_epochs=-1, callbacks=[lmtrain.callbacks.TokenBudget(tokens=10_000_000)])
    """

    def __init__(
        self, *, tokens: int | str | None = None, steps: int | str | None = None, context: RunContext | None = None
    ) -> None:
        super().__init__(context)
        self._tokens = None if tokens is None else parse_whole(tokens, "callbacks.token_budget.tokens")
        self._steps = None if steps is None else parse_whole(steps, "callbacks.token_budget.steps")
        self._trained_tokens = 0
        self._began = (0, 0)  # step and tokens at this process's start

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._steps is not None:
            self.run.last_step.at_most(self._steps)
        self._began = trainer.global_step, self._trained_tokens
        self._stop_if_spent(trainer)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.context is not None:
            planned = self.context.plan.batch.accumulation_micro_steps
            if trainer.accumulate_grad_batches != planned:
                raise ConfigurationError(
                    f"accumulate_grad_batches must be {planned}, as this run is planned and counted, got "
                    f"{trainer.accumulate_grad_batches} from a callback; set batch.tokens_per_step instead."
                )
        if self._tokens is not None:
            self._trained_tokens += count_tokens(batch) * trainer.world_size
        if self.is_step_end(trainer, batch_idx):
            if self._tokens is not None:  # other callbacks learn the last step by the tokens of the steps so far
                step, (first, before) = trainer.global_step, self._began
                per_step = (self._trained_tokens - before) / max(1, step - first)
                self.run.last_step.at_most(step + math.ceil(max(0, self._tokens - self._trained_tokens) / per_step))
            self._stop_if_spent(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self._tokens is None else {"trained_tokens": self._trained_tokens}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._trained_tokens = int(state_dict.get("trained_tokens", 0))

    def _stop_if_spent(self, trainer: pl.Trainer) -> None:
        is_spent = self._tokens is not None and self._trained_tokens >= self._tokens
        last_step = self.run.last_step.steps if self._tokens is None else self._steps
        if is_spent or (last_step is not None and trainer.global_step >= last_step):
            trainer.should_stop = True


TOKEN_BUDGET_FACTS: Final = CallbackFacts(ends_at_budget=True)
