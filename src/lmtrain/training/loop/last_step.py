"""The last step of a run: known beforehand, or, under a budget of time, estimated anew as the run goes."""

import math


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
        self._most_steps = most_steps

    def reestimate(self, *, step: int, spent_seconds: float, seconds_per_step: float) -> int:
        """Return the last step within the time limit, if the steps after `step` go at this rate."""
        if self.seconds is None:
            return self.steps
        left = max(0, math.floor((self.seconds - spent_seconds) / seconds_per_step))
        return min(step + left, self._most_steps or step + left)
