"""Hold a run to its hours or dollars: estimate its last step anew as its speed becomes known."""

import logging
import time
from typing import Any, Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.quantities import format_quantity
from lmtrain.training.context import RunContext
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.module import CausalLMModule

_LOG = logging.getLogger(__name__)
STEPS_BEFORE_THE_END: Final = 2  # from so many intervals before the end on, ranks agree on every step


class TimeBudget(pl.Callback):
    """Move the run's last step to the end of the budget of time, all attempts counted.

    There is time in it for the validations, a sample and a save, each as long as the newest without its compilation.
    The learning-rate schedule follows. One rank looks after each step; several follow the first one's clock every
    `every_steps` steps, and at each step near the end. Without a budget of time it does nothing. It belongs first in
    the list: the others must know of the last step in time.
    """

    def __init__(self, *, every_steps: int, context: RunContext) -> None:
        super().__init__()
        self._context = context
        self._last_step = context.last_step
        self._every_steps = every_steps
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.time_budget.every_steps")
        self._mark: tuple[int, float] | None = None  # step and moment since which speed is measured
        self._estimated_before: int | None = None  # the last step, by the attempt that wrote the checkpoint

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._last_step.seconds is None:
            return
        before = self._estimated_before
        if before is not None and before > trainer.global_step:  # else a smaller budget ended the run here
            self._last_step.steps, self._last_step.is_known = before, True
        self._follow(trainer, pl_module, self._last_step.steps)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._last_step.seconds is None or not is_step_end(trainer, batch_idx):
            return
        step, now = trainer.global_step, time.monotonic()
        if self._mark is None:  # the first step compiled: speed is the later steps'
            self._mark = (step, now)
            return
        near_end = self._last_step.steps - step <= STEPS_BEFORE_THE_END * self._every_steps
        if trainer.world_size == 1 or near_end or self._interval.includes(step):
            self._follow(trainer, pl_module, self._estimate(step, now))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self._last_step.steps}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._estimated_before = int(state_dict["last_step"])

    def _estimate(self, step: int, now: float) -> int:
        first_step, began = self._mark or (step - 1, now)
        seconds_per_step = max((now - began) / (step - first_step), 1e-9)
        spent = self._context.spent_seconds()
        pauses = self._context.pauses_to_come(step, step_seconds=seconds_per_step)
        self._tell_of_too_little(step, spent, pauses)
        spent_seconds = spent + pauses
        return self._last_step.reestimate(step=step, spent_seconds=spent_seconds, seconds_per_step=seconds_per_step)

    def _tell_of_too_little(self, step: int, spent: float, pauses: float) -> None:
        """Say at the first estimate that nothing is left for steps."""
        is_first, self._last_step.is_known = not self._last_step.is_known, True
        whole = self._last_step.seconds or 0.0
        if is_first and spent + pauses >= whole and self._context.is_main_process:
            seconds = [format_quantity(amount, "seconds") for amount in (whole, spent, pauses)]
            _LOG.warning(
                "The budget of %s is too small: %s are spent, and the validations and the save to come take %s. "
                "It ends after step %d; raise budget.%s, or shorten validations by callbacks.validation.max_tokens.",
                *seconds, step, self._context.plan.horizon.time_limit,
            )  # fmt: skip

    def _follow(self, trainer: pl.Trainer, module: pl.LightningModule, steps: int) -> None:
        assert isinstance(module, CausalLMModule)
        self._last_step.steps = module.total_steps = max(1, int(trainer.strategy.broadcast(steps)))


def time_budget_facts() -> CallbackFacts:
    """Move the last step to the budget of time."""
    return CallbackFacts(keeps_time=True)
