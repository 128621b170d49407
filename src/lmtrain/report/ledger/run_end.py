"""The time left of a run, by the end that its plan has: a last step, passes over held-out text, a budget of time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmtrain.accounting.observed.time_accounts import Passes, TimeBalance
from lmtrain.accounting.training_plan.evaluation_plan import EvaluationPlan


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The last step, the passes of the whole run, and the seconds of its budget; None: there are none, or unknown.

    An attempt on twice the devices spends twice the seconds of a budget of dollars: `counts_devices`.
    """

    num_steps: int
    evaluation: EvaluationPlan | None = None
    budget_seconds: float | None = None
    counts_devices: bool = False

    def seconds_left(
        self, time: TimeBalance, *, step: int, steps_done: int, device_seconds: float, num_devices: int
    ) -> float | None:
        """Return how long the run goes on from a step, at its pace; None before its first one."""
        spent = device_seconds / num_devices if self.counts_devices else time.wall_seconds
        return time.seconds_left(
            steps_done=steps_done,
            steps_left=self.num_steps - step,
            passes=self._passes(step),
            at_most=None if self.budget_seconds is None else self.budget_seconds - spent,
        )

    def passes_seconds(self, *, first: int, last: int, step_seconds: float, tokens_per_step: int) -> float:
        """Return the planned seconds of the passes between two steps, that before a run's first step with them."""
        if self.evaluation is None:
            return 0.0
        before = self.evaluation.passes_by(first, num_steps=self.num_steps) if first else 0
        due = self.evaluation.passes_by(last, num_steps=self.num_steps) - before
        return due * self.evaluation.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens_per_step)

    def _passes(self, step: int) -> Passes | None:
        if self.evaluation is None:
            return None
        done, left = self.evaluation.passes_by, self.evaluation.passes_left
        return Passes(done=done(step, num_steps=self.num_steps), left=left(step, num_steps=self.num_steps))


def run_end(plan: Mapping[str, Any], *, last_step: int) -> RunEnd:
    """Return the end of a run's plan.json; `last_step` stands for one that it lacks."""
    horizon, evaluation = plan.get("horizon", {}), plan.get("evaluation") or {}
    sizes = {name: evaluation[name] for name in ("num_passes", "tokens_per_pass") if name in evaluation}
    return RunEnd(
        num_steps=horizon.get("steps", last_step),
        evaluation=EvaluationPlan(**sizes) if len(sizes) == 2 else None,
        budget_seconds=horizon.get("seconds"),
        counts_devices=horizon.get("time_limit") == "usd",
    )
