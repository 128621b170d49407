"""End a run at a validation whose score stops improving."""

import logging
import math
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import ConfigurationError, suggest
from lmtrain.tracking.events import EARLY_STOPPING
from lmtrain.training.checkpointing.checkpoints import HeldOutScores
from lmtrain.training.context import RunCallback, RunContext

_LOG = logging.getLogger(__name__)


class EarlyStopping(RunCallback):
    """Stop after `patience` validations in a row without a value lower than the best by more than `min_delta`.

    `metric` is one of the validation's; lower is better, and a non-finite value is never better. The checkpoint
    callback saves the step of each best validation and of the last one, and a resumed run counts on from there. In a
    plain Trainer the metric is one of `trainer.callback_metrics`. Listed before `validation` it acts one step later.
    """

    def __init__(
        self,
        *,
        metric: str = "validation/bits_per_byte",
        patience: int = 3,
        min_delta: float = 0.0,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context)
        require_count("callbacks.early_stopping.patience", patience)
        require_number("callbacks.early_stopping.min_delta", min_delta, at_least=0, usual="0.0")
        self._metric, self._patience, self._min_delta = metric, patience, min_delta
        self._scores = HeldOutScores() if context is None else context.scores
        self._scores.keeps_best, self._scores.metric = True, metric
        self._best, self._best_step, self._passes_since = math.inf, 0, 0
        self._judged_step, self._num_bytes = -1, 0
        self.reason: str | None = None  # why it ended the run; None: it has not

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_over(trainer)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop_if_over(trainer)

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the Trainer's own validation, if there is one."""
        if self.context is None and not trainer.sanity_checking:
            metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self._scores.step, self._scores.metrics = trainer.global_step, metrics
            self._stop_if_over(trainer)

    @override
    def state_dict(self) -> dict[str, Any]:
        self._judge()  # a checkpoint of this very step may be written before this callback's turn
        counts = {"best_step": self._best_step, "passes_since": self._passes_since, "judged_step": self._judged_step}
        return {"metric": self._metric, "best": self._best, "num_bytes": self._num_bytes, **counts}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._judged_step = int(state_dict["judged_step"])
        if state_dict.get("metric", self._metric) != self._metric:
            return  # another metric has no best yet
        self._best, self._best_step = float(state_dict["best"]), int(state_dict["best_step"])
        self._passes_since = int(state_dict["passes_since"])
        self._num_bytes = int(state_dict.get("num_bytes", 0))

    def _judge(self) -> None:
        """Count each validation once, the same on all ranks; start again if its text changed."""
        step = self._scores.step
        if step is None or step <= self._judged_step:
            return
        self._judged_step = step
        if self._num_bytes != self._scores.num_bytes:
            self._num_bytes, self._best, self._passes_since = self._scores.num_bytes, math.inf, 0
        if self._metric not in self._scores.metrics:
            known = ", ".join(sorted(self._scores.metrics))
            raise ConfigurationError(
                f"callbacks.early_stopping.metric: must be one of the validation's ({known}), got {self._metric}."
                f"{suggest(self._metric, self._scores.metrics)}"
            )
        value = self._scores.metrics[self._metric]
        if value < self._best - self._min_delta:
            self._best, self._best_step, self._passes_since = value, step, 0
        else:
            self._passes_since += 1

    def _stop_if_over(self, trainer: pl.Trainer) -> None:
        self._judge()
        if self._passes_since < self._patience:
            return
        best = f"{self._metric} {self._best:.4f} of step {self._best_step}"
        self.reason = f"{best} was the best of the last {self._passes_since + 1} validations"
        trainer.should_stop = True
        if (step := trainer.global_step) >= self.run.last_step.steps:
            return
        self.run.events.mark(EARLY_STOPPING, step=step, best_step=self._best_step)
        if trainer.is_global_zero:
            _LOG.warning("Early stopping after step %d: %s.", step, self.reason)


def early_stopping_facts(*, metric: str = "validation/bits_per_byte", patience: int = 3) -> CallbackFacts:
    """Judge the validations during a run, and need some."""
    return CallbackFacts(acts_between_steps=True, judges=metric, patience=patience)
