"""The two referees of a loop: one that times its turns, and one that follows a run to its end."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.learning_speed.evaluation import evaluate
from benchmarks.harness.learning_speed.task import LearningTask, Predict
from benchmarks.harness.train_step.turns import Turns

PART = 4  # a point of the curve reads each fourth batch of held-out windows, the end all of them


class Timed(Turns):
    """Turns of steps, which need no predictions."""

    def predict_with(self, predict: Predict) -> None:
        """Do nothing: what is timed is training."""


class Followed:
    """A run that is evaluated between steps; its clock is the number of steps."""

    def __init__(self, task: LearningTask) -> None:
        self._task = task
        self._held_out, self._token_bytes = task.held_out(), task.token_bytes
        self._points = points(task.max_steps, task.num_points)
        self._step = 0
        self._began = time.perf_counter()
        self.facts: dict[str, Any] = {"curve": []}

    def say(self, **facts: object) -> None:
        """Keep a fact."""
        self.facts.update(facts)

    def predict_with(self, predict: Predict) -> None:
        """Keep how to predict."""
        self._predict = predict

    def step(self) -> None:
        """Count a step, and evaluate where the curve has a point."""
        self._step += 1
        if self._step == 1:
            self.say(first_step_seconds=time.perf_counter() - self._began)
        if self._step not in self._points:
            return
        is_last = self._step == self._task.max_steps
        batches = self._held_out if is_last else self._held_out[::PART]
        everything, part = evaluate(self._predict, batches, self._token_bytes, every=PART if is_last else 1)
        self.facts["curve"].append([self._step, part.bits_per_byte])
        if is_last:
            self.say(bits_per_byte=everything.bits_per_byte, num_bytes=everything.num_bytes)
        print(f"step {self._step:5d}: {part.bits_per_byte:.4f} bits per byte of a part", flush=True)

    def save(self, path: Path) -> None:
        """Write what is known, in one go: a file that is there is of a finished run."""
        aside = path.with_suffix(".aside")
        aside.write_text(json.dumps(self.facts) + "\n")
        aside.replace(path)


def points(num_steps: int, num_points: int) -> Sequence[int]:
    """Return the steps after which a run is evaluated: evenly, and the last."""
    return sorted({round(num_steps * place / num_points) for place in range(1, num_points + 1)} - {0})
