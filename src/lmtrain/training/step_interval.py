"""Every how many optimizer steps something happens, with the run's last step always among them."""

import lightning.pytorch as pl

from lmtrain.errors import ConfigurationError
from lmtrain.training.steps import is_step_end


class StepInterval:
    """The steps that are a multiple of `every_steps`, and `last_step`; `every_steps` None leaves only the last.

    Raises: ConfigurationError under the setting's `key` for an interval below 1.
    """

    def __init__(self, every_steps: int | None, *, last_step: int, key: str) -> None:
        if every_steps is not None and every_steps < 1:
            raise ConfigurationError(f"{key}={every_steps} is below 1; nearest valid: 1 (null: the last step only).")
        self._every_steps = every_steps
        self._last_step = last_step

    def is_due(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        """Tell, in `on_train_batch_end`, whether this micro-batch (from 0) ended such a step."""
        if not is_step_end(trainer, batch_idx):
            return False
        return self.includes(trainer.global_step)

    def includes(self, step: int) -> bool:
        """Tell whether this step, counted from 1, is one of them."""
        return step >= self._last_step or (self._every_steps is not None and step % self._every_steps == 0)
