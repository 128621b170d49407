"""End a run whose training loss leaves its lowest far behind, with a checkpoint and exit code 0."""

import logging
import math
from collections import deque
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError
from lmtrain.training.context import RunContext
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.module import CausalLMModule
from lmtrain.training.step_metrics import StepRecord

_LOG = logging.getLogger(__name__)


class Divergence(pl.Callback):
    """Stop once the mean loss of `mean_steps` steps is `most_rise` times the lowest such mean, or is no number.

    It looks every `every_steps` steps. Losses are sums over all ranks: every rank stops alike. A run with
    `training_health` ends at a loss that is no number before this does.

    Raises: ConfigurationError for a rise of 1 or less, or a mean of nothing.
    """

    def __init__(self, *, most_rise: float, mean_steps: int, every_steps: int, context: RunContext) -> None:
        super().__init__()
        if not 1 < most_rise < math.inf:
            raise ConfigurationError(f"callbacks.divergence.most_rise={most_rise:g} is not above 1; nearest valid: 3.")
        require_count("callbacks.divergence.mean_steps", mean_steps)
        self._most_rise = most_rise
        self._context = context
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.divergence.every_steps")
        self._unseen: list[StepRecord] = []
        self._recent: deque[float] = deque(maxlen=mean_steps)
        self._lowest = math.inf

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, CausalLMModule)
        self._unseen = pl_module.step_metrics.follow()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, CausalLMModule)
        if not self._interval.is_due(trainer, batch_idx):
            return
        pl_module.step_metrics.drain()
        records = self._unseen.copy()
        self._unseen.clear()
        if any(self._has_left(record) for record in records) and trainer.global_step < self._context.last_step.steps:
            trainer.should_stop = True
            self._context.events.mark("divergence", step=trainer.global_step)
            if self._context.is_main_process:
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
        """Take one step's loss, and tell whether the mean is out of reach of its lowest."""
        if record.num_tokens == 0:
            return False
        self._recent.append(record.loss)
        if not math.isfinite(record.loss):
            return True
        if len(self._recent) == self._recent.maxlen:
            self._lowest = min(self._lowest, self._mean)
        return self._mean > self._most_rise * self._lowest


def divergence_facts() -> CallbackFacts:
    """Judge losses that the log has already fetched."""
    return CallbackFacts(acts_between_steps=True)
