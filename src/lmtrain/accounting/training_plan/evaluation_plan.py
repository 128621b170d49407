"""A run's passes over held-out text, and their seconds: a forward pass is a third of a training step's FLOPs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lmtrain.accounting.options.parts import HeldOutPasses

FORWARD_SHARE: Final = 1 / 3  # of the FLOPs of forward and backward together


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """Passes over held-out text before, during and after the training, and the computed tokens of one."""

    num_passes: int
    tokens_per_pass: int

    def passes_by(self, step: int, *, num_steps: int) -> int:
        """Return how many of a run's passes are over after a step, that before the first step with them."""
        return 1 + (self.num_passes - 1) * min(step, num_steps) // max(1, num_steps)

    def passes_left(self, step: int, *, num_steps: int) -> int:
        """Return how many come after a step."""
        return self.num_passes - self.passes_by(step, num_steps=num_steps)

    def seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return how long they take at the speed of training."""
        return self.num_passes * self.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens_per_step)

    def pass_seconds(self, *, step_seconds: float, tokens_per_step: int) -> float:
        """Return how long one takes at the speed of training."""
        return self.tokens_per_pass * FORWARD_SHARE * step_seconds / tokens_per_step


def evaluation_plan(
    passes: HeldOutPasses | None, *, num_steps: int, run_tokens: int, held_out: Sequence[int], padding: float = 1.0
) -> EvaluationPlan | None:
    """Return the passes of a run; None without any, or where no text is known.

    `held_out` counts the tokens of each text in a pass, at most as many as in the whole training; `padding` are the
    tokens computed for each of them.
    """
    if passes is None or not held_out:
        return None
    most = min(run_tokens, passes.max_tokens or run_tokens)
    return EvaluationPlan(
        num_passes=1 + passes.during(num_steps),
        tokens_per_pass=round(padding * sum(min(most, count) for count in held_out)),
    )
