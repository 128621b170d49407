"""Checkpoints written by a thread while training goes on, by agreement of all ranks of a run (docs/decisions/0012)."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import lightning.pytorch as pl

from lmtrain.accounting.quantities import format_quantity
from lmtrain.training.checkpointing.host_copy import HostCopier, HostCopy, available_bytes, num_state_bytes

_LOG = logging.getLogger(__name__)
SECONDS_FOR_OTHER_RANKS: Final = 30.0  # to write their shards, where one of them has failed
SHARE_OF_FREE: Final = 0.9  # of free host memory may be taken by a copy
LOWEST_PRIORITY: Final = 19


@dataclass(frozen=True)
class SaveOutcome:
    """The outcome of a step's checkpoint; `problem` None: it is whole.

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
        self._is_agreed = False
        self._copier: HostCopier | None = None
        self._copy: HostCopy | None = None
        self._thread: threading.Thread | None = None
        self._answer: tuple[str | None, float, int] = (None, 0.0, 0)  # problem, seconds, bytes
        self._in_flight: tuple[int, float, float] | None = None  # step, stall and its wait, on every rank
        self._outcome: SaveOutcome | None = None  # where it is known before all ranks settle

    @property
    def is_busy(self) -> bool:
        """Return whether a checkpoint of this rank's is not yet written."""
        return self._thread is not None

    def is_possible(self, trainer: pl.Trainer, module: pl.LightningModule) -> bool:
        """Agree with all ranks, once, whether the state is large enough and each writing rank has room for a copy."""
        if self.is_wanted and not self._is_agreed:
            is_sharded = getattr(trainer.strategy, "writes_own_checkpoints", False)
            is_ready = not (is_sharded or trainer.is_global_zero)
            if not is_ready:
                state = [*module.parameters(), *module.buffers(), *(dict(one.state) for one in trainer.optimizers)]
                num_bytes = num_state_bytes(state)
                is_ready = num_bytes >= self._from_bytes and has_room(num_bytes * (trainer.num_devices**is_sharded))
                self._copier = HostCopier(module.device)
            self.is_wanted, self._is_agreed = trainer.strategy.reduce_boolean_decision(is_ready), True
        return self.is_wanted

    def begin(self, job: Callable[[], int]) -> None:
        """Copy a job (any picklable callable with the written bytes as its result) and do it on a thread."""
        assert self._copier is not None
        assert self._thread is None, "one job at a time"
        self._copy = self._copier.copy(job)
        self._thread = threading.Thread(target=self._write, args=(self._copy,), name="checkpoint", daemon=True)
        self._thread.start()

    def has_begun(self, step: int, *, stall_seconds: float, wait_seconds: float) -> None:
        """Note, on every rank, that the checkpoint of a step is in flight."""
        self._in_flight = (step, stall_seconds, wait_seconds)

    def hold_compute(self) -> None:
        """Let the device change no tensor still being copied."""
        if self._copy is not None:
            self._copy.hold_compute()
            self._copy = None

    def poll(self) -> None:
        """Report the outcome if it is known, without waiting."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._in_flight is not None:
                self._outcome = SaveOutcome(*self._in_flight, *self._answer)
                self._report(self._outcome)

    def settle(self, trainer: pl.Trainer) -> SaveOutcome | None:
        """Wait for the checkpoint in flight on all ranks, and return the first one's outcome; None: there is none."""
        if self._in_flight is None:
            return None
        self._wait()
        outcome: SaveOutcome | None = trainer.strategy.broadcast(self._outcome)
        self._in_flight = self._outcome = None
        return outcome

    def give_up(self, problem: str) -> None:
        """Write the following ones while training waits; for all ranks together."""
        self.is_wanted = False
        self._copier = None
        _warn_of_waiting(problem)

    def finish_alone(self, trainer: pl.Trainer) -> None:
        """Wait for the checkpoint in flight on a failing rank."""
        self._wait(at_most_seconds=None if trainer.world_size == 1 else SECONDS_FOR_OTHER_RANKS)
        if self._copier is not None and self._in_flight and (self._outcome is None or self._outcome.problem):
            why = self._outcome.problem if self._outcome else "it took too long"
            _LOG.error("NO CHECKPOINT of step %d: %s", self._in_flight[0], why)

    def _wait(self, *, at_most_seconds: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(at_most_seconds)
            self.poll()

    def _write(self, copy: HostCopy) -> None:
        if sys.platform == "linux":  # where a thread has a priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        began, num_bytes, problem = time.perf_counter(), 0, None
        try:
            num_bytes = copy.restore()()
        except Exception as failure:  # noqa: BLE001  reported by the rank's next save
            problem = str(failure) or repr(failure)
        self._answer = problem, time.perf_counter() - began, num_bytes


def has_room(num_bytes: int) -> bool:
    """Return whether the host has memory for a copy; warn where it has not."""
    free = available_bytes()
    if free is None or num_bytes <= SHARE_OF_FREE * free:
        return True
    needed, there = format_quantity(num_bytes, "bytes"), format_quantity(free, "bytes")
    _warn_of_waiting(f"A copy of the state needs {needed}, and {there} of host memory is free.")
    return False


def _warn_of_waiting(problem: str) -> None:
    _LOG.warning(
        "%s Training waits while checkpoints are written, as with callbacks.checkpoint.background_from_bytes=null.",
        problem,
    )
