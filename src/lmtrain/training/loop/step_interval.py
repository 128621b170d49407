"""Every how many optimizer steps something happens, with the run's last step always among them."""

import lightning.pytorch as pl

from lmtrain.accounting.options.ranges import require_count
from lmtrain.training.loop.last_step import LastStep
from lmtrain.training.loop.steps import is_step_end


class StepInterval:
    """The multiples of `every_steps`, or `num_times` steps spread evenly, and the last one.

    With neither, only the last. Raises: ConfigurationError under the setting's `key` for an interval below 1.
    """

    def __init__(self, every_steps: int | None, *, num_times: int | None = None, last_step: LastStep, key: str) -> None:
        require_count(key, every_steps)
        self._every_steps = every_steps
        self._num_times = num_times
        self._last_step = last_step

    def is_due(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        """Return, in `on_train_batch_end`, whether this micro-batch (from 0) ended such a step."""
        if not is_step_end(trainer, batch_idx):
            return False
        return self.includes(trainer.global_step)

    def includes(self, step: int) -> bool:
        """Return whether this step, counted from 1, is one of them."""
        if step >= self._last_step.steps:
            return True
        if self._num_times is not None:
            return self._part(step) > self._part(step - 1)
        return self._every_steps is not None and step % self._every_steps == 0

    def _part(self, step: int) -> int:
        """Return how many of `num_times` equal parts of the run are done after a step."""
        return step * (self._num_times or 0) // self._last_step.steps
