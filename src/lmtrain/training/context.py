"""A run's parts, as seen by its callbacks: facts fixed before the first step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lmtrain.accounting.training_plan.plan import Plan
from lmtrain.data.shards import Dataset
from lmtrain.search.halving import step_of_part
from lmtrain.tokenizers.base import Tokenizer
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.timekeeping.clock import unix_seconds
from lmtrain.tracking.timekeeping.events import EventLog
from lmtrain.training.held_out_scores import HeldOutScores
from lmtrain.training.loop.last_step import LastStep


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Facts for callbacks; a constructor with a parameter `context` receives it.

    `log` is None on every rank but the first, the only writer of metrics and console lines. `identity` holds the facts
    shared by a checkpoint and a run resuming from it. `attempt` numbers the run's starts; `earlier_seconds` is the time
    of those before, `earlier_device_seconds` that of all their devices. `scores` are the newest of its validation.
    `pause_after` (k, n) stops the run after the k-th of n equal parts, to be continued. `expected_pauses` are the
    seconds of pauses by name, before the first of them.
    """

    folder: Path
    plan: Plan
    dataset: Dataset
    tokenizer: Tokenizer
    identity: dict[str, str | int | float | None]
    events: EventLog
    log: RunLog | None
    rank: int = 0
    attempt: int = 1
    earlier_seconds: float = 0.0
    earlier_device_seconds: float = 0.0
    pause_after: tuple[int, int] | None = None
    scores: HeldOutScores = field(default_factory=HeldOutScores)
    expected_pauses: dict[str, float] = field(default_factory=dict[str, float])

    @cached_property
    def last_step(self) -> LastStep:
        """Return the run's last step; a budget of time moves it while the run goes on."""
        end = self.plan.horizon
        return LastStep(end.steps, seconds=end.seconds, most_steps=end.most_steps, is_known=not end.is_stand_in)

    @property
    def pause_step(self) -> int | None:
        """Return the step of the run's pause, None without one."""
        return step_of_part(self.pause_after, num_steps=self.last_step.steps)

    @property
    def earlier_seconds_of_budget(self) -> float:
        """Return how much of a budget of time the attempts before this one have spent."""
        if self.plan.horizon.counts_devices:
            return self.earlier_device_seconds / self.plan.batch.num_ranks
        return self.earlier_seconds

    def spent_seconds(self) -> float:
        """Return how much of a budget of time the run has spent, in this attempt and all before it."""
        return self.earlier_seconds_of_budget + self.events.stopwatch.elapsed_seconds

    def pauses_to_come(self, step: int, *, step_seconds: float) -> float:
        """Return the seconds of the validations after a step, of a sample and a save, each as long as the newest.

        Compilation does not come again. Before the first of this attempt, a sample is expected to take as long as a
        part of one took, a save as planned, and a validation as planned at the speed of training, `step_seconds`.
        """
        saves, evaluation = self.plan.checkpoints, self.plan.evaluation
        planned = {"checkpoint": 0.0 if saves is None else saves.write_seconds, "validation": 0.0}
        if evaluation is not None:
            tokens = self.plan.batch.tokens_per_step
            planned["validation"] = evaluation.pass_seconds(step_seconds=step_seconds, tokens_per_step=tokens)
        pauses = planned | self.expected_pauses | self.events.last_pauses
        passes = evaluation.passes_left(step, num_steps=self.last_step.steps) if evaluation else 1
        return passes * pauses["validation"] + pauses.get("text_samples", 0.0) + pauses["checkpoint"]

    def spent_device_seconds(self, num_devices: int) -> float:
        """Return the same for all devices together: `num_devices` of this attempt, those of each before."""
        return self.earlier_device_seconds + self.events.stopwatch.elapsed_seconds * num_devices

    def tokens_at(self, step: int) -> int:
        """Return how many tokens the run has trained on after so many steps."""
        return step * self.plan.batch.tokens_per_step

    def point(self, step: int, metrics: Mapping[str, float], *, at: float | None = None) -> Point:
        """Return the curves' point of this step, with the run's tokens at it; `at` in unix seconds, None for now."""
        return Point(unix_seconds() if at is None else at, step, self.tokens_at(step), dict(metrics))

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point of this step to the run's curves; nothing on any rank but the first.

        Raises:
            EnvironmentProblem: The disk is broken or read-only.
        """
        if self.log is not None:
            self.log.extend([self.point(step, metrics)])

    @property
    def is_main_process(self) -> bool:
        """Return whether this rank writes for all."""
        return self.rank == 0

    @property
    def checkpoints_folder(self) -> Path:
        """Return where this run's checkpoints live."""
        return self.folder / "checkpoints"
