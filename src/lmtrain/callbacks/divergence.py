"""End a run whose training loss rises far above its lowest, with a checkpoint and exit code 0."""

import logging
import math
from collections import deque
from typing import Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.step_metrics import StepRecord

_LOG = logging.getLogger(__name__)


class Divergence(RunCallback):
    """Stop once the mean loss of `mean_steps` steps is `most_rise` times the lowest such mean, or is not finite.

    It looks every `every_steps` steps. Losses are sums over all ranks, so every rank stops at the same step. With
    `training_health` a run ends at a loss that is not finite before this callback sees it.
    """

    def __init__(
        self,
        *,
        most_rise: float = 3.0,
        mean_steps: int = 100,
        every_steps: int = 10,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.divergence.every_steps"))
        require_number("callbacks.divergence.most_rise", most_rise, above=1, usual="3")
        require_count("callbacks.divergence.mean_steps", mean_steps)
        self._most_rise = most_rise
        self._recent: deque[float] = deque(maxlen=mean_steps)
        self._lowest = math.inf

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._take_steps = self.steps_of(trainer, pl_module).follow()

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if (
            any(self._has_left(record) for record in self._take_steps())
            and trainer.global_step < self.run.last_step.steps
        ):
            trainer.should_stop = True
            self.run.events.mark("divergence", step=trainer.global_step)
            if trainer.is_global_zero:
                _LOG.warning(
                    "Diverged: stopping after step %d, the mean loss is %.4g and was %.4g.",
                    trainer.global_step,
                    self._mean,
                    self._lowest,
                )

    @property
    def _mean(self) -> float:
        return sum(self._recent) / len(self._recent)

    def _has_left(self, record: StepRecord) -> bool:
        """Add one step's loss; return whether the mean is too far above its lowest."""
        if record.num_tokens == 0:
            return False
        self._recent.append(record.loss)
        if not math.isfinite(record.loss):
            return True
        if len(self._recent) == self._recent.maxlen:
            self._lowest = min(self._lowest, self._mean)
        return self._mean > self._most_rise * self._lowest


DIVERGENCE_FACTS: Final = CallbackFacts(acts_between_steps=True)
