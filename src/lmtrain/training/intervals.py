"""The steps at which callbacks act, and the last step of a run."""

import math
import sys

import lightning.pytorch as pl

from lmtrain.accounting.options.ranges import require_count


class LastStep:
    """`steps` is the number of the last step, from 1, as it is known now; every rank holds the same.

    `seconds` is the time the whole run may take over all attempts (None: no limit) and `most_steps` the most steps of
    its other budgets. `is_known` False: no speed is, and `steps` a stand-in for the schedule. `goes_on_later`: this
    attempt is stopped before it, and the same command trains the rest.
    """

    def __init__(
        self, steps: int, *, seconds: float | None = None, most_steps: int | None = None, is_known: bool = True
    ) -> None:
        self.steps = steps
        self.seconds = seconds
        self.is_known = is_known
        self.goes_on_later = False
        self.most_steps = most_steps

    def at_most(self, steps: int) -> None:
        """Lower the last step to that of another budget."""
        self.most_steps, self.is_known = steps, True
        self.steps = min(self.steps, steps)

    def reestimate(self, *, step: int, spent_seconds: float, seconds_per_step: float) -> int:
        """Return the last step within the time limit, if the steps after `step` go at this rate."""
        if self.seconds is None:
            return self.steps
        left = max(0, math.floor((self.seconds - spent_seconds) / seconds_per_step))
        return min(step + left, self.most_steps or step + left)


def is_step_end(trainer: pl.Trainer, batch_idx: int) -> bool:
    """Return, in `on_train_batch_end` of a run, whether this micro-batch (from 0) completed an optimizer step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


class StepInterval:
    """The multiples of `every_steps`, or `num_times` steps spread evenly, and the last one.

    With neither, only the last. `last_step` None is set before the first question.
    """

    def __init__(
        self, every_steps: int | None, *, num_times: int | None = None, last_step: LastStep | None = None, key: str
    ) -> None:
        require_count(key, every_steps)
        self._every_steps = every_steps
        self._num_times = num_times
        self.last_step = last_step or LastStep(sys.maxsize, is_known=False)

    def includes(self, step: int) -> bool:
        """Return whether this step, counted from 1, is one of them."""
        if step >= self.last_step.steps:
            return True
        if self._num_times is not None:
            return self._part(step) > self._part(step - 1)
        return self._every_steps is not None and step % self._every_steps == 0

    def _part(self, step: int) -> int:
        """Return how many of `num_times` equal parts of the run are done after a step."""
        return step * (self._num_times or 0) // self.last_step.steps
