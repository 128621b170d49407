"""Checkpoints written while training goes on, by agreement of all ranks of a run."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import lightning.pytorch as pl

from lmtrain.errors import EnvironmentProblem
from lmtrain.training.checkpointing.background_writer import Answer, BackgroundWriter
from lmtrain.training.checkpointing.staging import num_state_bytes

_LOG = logging.getLogger(__name__)
SECONDS_FOR_OTHER_RANKS: Final = 30.0  # to write their shards, where one of them has failed


@dataclass(frozen=True)
class SaveOutcome:
    """The outcome of a step's checkpoint; `problem` None: it is whole. Seconds and bytes written are the writer's.

    Of the stall, training's pause, `wait_seconds` were for the checkpoint before; the rest copied the state.
    """

    step: int
    stall_seconds: float
    wait_seconds: float
    problem: str | None
    write_seconds: float
    num_bytes: int


class BackgroundSaves:
    """At most one checkpoint in flight: `begin` it, `poll` now and then, `settle` it on all ranks.

    A state of less than `from_bytes` (None: any) is not worth it. `report` is called with each outcome once, when it is
    known, on the ranks that write.
    """

    def __init__(self, *, from_bytes: int | None, report: Callable[[SaveOutcome], object]) -> None:
        self.is_wanted = from_bytes is not None
        self._from_bytes = from_bytes or 0
        self._report = report
        self._writer: BackgroundWriter | None = None
        self._is_prepared = False
        self._is_agreed = False
        self._in_flight: tuple[int, float, float] | None = None  # step, stall and its wait, on every rank
        self._outcome: SaveOutcome | None = None  # where it is known before all ranks settle

    @property
    def is_busy(self) -> bool:
        """Return whether a checkpoint of this rank's is not yet written."""
        return self._writer is not None and self._writer.is_busy

    def prepare(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Start the process and find memory for a copy, once, on the ranks that write: they need it soon.

        If there is not enough room `is_possible` says so, on all ranks together.
        """
        is_sharded = getattr(trainer.strategy, "writes_own_checkpoints", False)
        if self._is_prepared or not self.is_wanted or not (is_sharded or trainer.is_global_zero):
            return
        self._is_prepared = True
        tensors = [*module.parameters(), *module.buffers()]
        num_bytes = num_state_bytes(tensors, *(dict(optimizer.state) for optimizer in trainer.optimizers))
        if num_bytes < self._from_bytes:
            return
        writer = BackgroundWriter(module.device)
        try:
            writer.prepare(num_bytes, num_alike=trainer.num_devices if is_sharded else 1)
            self._writer = writer
        except EnvironmentProblem as problem:
            writer.close()
            _tell_of_waiting(problem)

    def is_possible(self, trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Agree with all ranks, once, whether each writing rank is ready."""
        if self.is_wanted and not self._is_agreed:
            self.prepare(trainer, module)
            is_ready = self._writer is not None or not self._is_prepared
            self.is_wanted, self._is_agreed = trainer.strategy.reduce_boolean_decision(is_ready), True
        return self.is_wanted

    def begin(self, job: Callable[[], int]) -> None:
        """Copy a job's state and have it done; for a rank that writes."""
        assert self._writer is not None
        self._writer.start(job)

    def has_begun(self, step: int, *, stall_seconds: float, wait_seconds: float) -> None:
        """Note, on every rank, that the checkpoint of a step is in flight."""
        self._in_flight = (step, stall_seconds, wait_seconds)

    def hold_compute(self) -> None:
        """Let the device change no tensor still being copied."""
        if self._writer is not None:
            self._writer.hold_compute()

    def poll(self) -> None:
        """Continue as far as possible without waiting."""
        if self._writer is not None:
            self._note(self._writer.poll())

    def settle(self, trainer: pl.Trainer) -> SaveOutcome | None:
        """Wait for the checkpoint in flight on all ranks, and return the first one's outcome; None: there is none."""
        if self._in_flight is None:
            return None
        if self._writer is not None:
            self._note(self._writer.wait())
        outcome: SaveOutcome | None = trainer.strategy.broadcast(self._outcome)
        self._in_flight = self._outcome = None
        return outcome

    def give_up(self, problem: str) -> None:
        """Write the following ones while training waits; for all ranks together."""
        self.is_wanted = False
        self.close()
        _tell_of_waiting(problem)

    def finish_alone(self, trainer: pl.Trainer) -> None:
        """Wait for the checkpoint in flight on a failing rank, and end the process."""
        if self._writer is not None:
            self._note(self._writer.wait(at_most_seconds=None if trainer.world_size == 1 else SECONDS_FOR_OTHER_RANKS))
            if self._in_flight is not None and (self._outcome is None or self._outcome.problem):
                why = self._outcome.problem if self._outcome else "it took too long"
                _LOG.error("NO CHECKPOINT of step %d: %s", self._in_flight[0], why)
        self.close()

    def close(self) -> None:
        """End the process; a checkpoint in flight is lost."""
        self._in_flight = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _note(self, answer: Answer | None) -> None:
        if answer is not None and self._in_flight is not None:
            self._outcome = SaveOutcome(*self._in_flight, *answer)
            self._report(self._outcome)


def _tell_of_waiting(problem: object) -> None:
    _LOG.warning(
        "%s Training waits while checkpoints are written, as with callbacks.checkpoint.background_from_bytes=null.",
        problem,
    )
