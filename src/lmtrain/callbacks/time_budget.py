"""End training within a number of hours or dollars: estimate its last step again as its speed becomes known."""

import time
from typing import Any, Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.module import CausalLMModule

STEPS_BEFORE_THE_END: Final = 2  # intervals before the end from which on ranks agree on every step


class TimeBudget(RunCallback):
    """Move the last step to the end of the budget of time, all attempts of a run counted.

    There is time in it for the validations, a sample and a save, each as long as the newest without its compilation.
    The learning-rate schedule of a run follows. One rank looks after each step; several follow the first one's clock
    every `every_steps` steps, and at each step near the end. A run has its own budget; a plain Trainer stops
    `seconds` after its start (None: never). It belongs first in the list: the others must know the last step in time.
    """

    def __init__(
        self, *, every_steps: int = 10, seconds: float | None = None, context: RunContext | None = None
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.time_budget.every_steps"))
        require_number("callbacks.time_budget.seconds", seconds, above=0, usual="3600")
        self._every_steps, self._seconds = every_steps, seconds
        self._mark: tuple[int, float] | None = None  # step and moment since which speed is measured
        self._estimated_before: int | None = None  # the last step, by the attempt that wrote the checkpoint

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._last_step = self.run.last_step
        self._began = time.monotonic()
        if self._seconds is not None:
            self._last_step.seconds = self._seconds
        if self._last_step.seconds is None:
            return
        before = self._estimated_before
        if before is not None and before > trainer.global_step:  # else a smaller budget ended the run here
            self._last_step.steps, self._last_step.is_known = before, True
        self._follow(trainer, pl_module, self._last_step.steps)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._last_step.seconds is None:
            return
        step, now = trainer.global_step, time.monotonic()
        if self._mark is None:  # the first step compiled: speed is the later steps'
            self._mark = (step, now)
            return
        near_end = self._last_step.steps - step <= STEPS_BEFORE_THE_END * self._every_steps
        if trainer.world_size == 1 or near_end or self.is_due(step):
            self._follow(trainer, pl_module, self._estimate(trainer, now))
            if self.context is None and step >= self._last_step.steps:  # a run has its token budget for this
                trainer.should_stop = True

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self.run.last_step.steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._estimated_before = int(state_dict["last_step"]) if self.context is not None else None

    def _estimate(self, trainer: pl.Trainer, now: float) -> int:
        step = trainer.global_step
        first_step, began = self._mark or (step - 1, now)
        seconds_per_step = max((now - began) / (step - first_step), 1e-9)
        if self.context is None:
            spent, pauses = now - self._began, 0.0
        else:
            spent = self.context.spent_seconds()
            pauses = self.context.pauses_to_come(step, step_seconds=seconds_per_step)
        self._last_step.is_known = True
        return self._last_step.reestimate(step=step, spent_seconds=spent + pauses, seconds_per_step=seconds_per_step)

    def _follow(self, trainer: pl.Trainer, module: pl.LightningModule, steps: int) -> None:
        self._last_step.steps = max(1, int(trainer.strategy.broadcast(steps)))
        if isinstance(module, CausalLMModule):
            module.total_steps = self._last_step.steps


TIME_BUDGET_FACTS: Final = CallbackFacts(keeps_time=True)
