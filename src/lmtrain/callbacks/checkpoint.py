"""Save a run for resuming: every so many steps or seconds, and at its end; keep the last few and the best."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lightning.pytorch as pl
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS
from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.errors import ConfigurationError, Diverged, EnvironmentProblem
from lmtrain.storage.hashed_folder import clear_leftovers
from lmtrain.training.checkpointing.background_saves import BackgroundSaves, SaveOutcome
from lmtrain.training.checkpointing.checkpoint_io import FACTS
from lmtrain.training.checkpointing.retention import Retention, WriteAndRetain, set_aside_after
from lmtrain.training.context import RunContext
from lmtrain.training.evaluation_weights import WeightSwitch, evaluation_weights
from lmtrain.training.loop.step_interval import StepInterval
from lmtrain.training.loop.steps import is_step_end
from lmtrain.training.module import CausalLMModule

_LOG = logging.getLogger(__name__)
FAILURES_BEFORE_GIVING_UP: Final = 3
AGREE_EVERY_STEPS: Final = 10


class Checkpoint(pl.Callback):
    """Save to `checkpoints/step_00000200` every `every_steps` steps or `every_seconds` seconds, and at the end.

    `every_tokens` takes the place of `every_steps`: the nearest whole number of steps.

    Saving by the clock waits until it takes at most `max_time_share` of the time; over several ranks the first one's
    clock decides, every 10 steps. The `keep_last` newest stay, and with `keep_best` the one of the lowest bits per byte
    measured at its own step; the others go once the new one is verified. A failed save is reported, and training goes
    on with the older checkpoints; the third in a row, or the run's last, ends the run. A step with a non-finite loss is
    never saved.

    A state of `background_from_bytes` or more (None: never) holds training up only until it is copied on the host;
    another process writes the copy. One is in flight at most: the next save and the end of the run wait for it, and
    report its failure. The run's last checkpoint the trainer writes itself, having nothing else to do.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_tokens: int | None = None,
        every_seconds: float | None = None,
        max_time_share: float = 1.0,
        keep_last: int = 2,
        keep_best: bool = True,
        background_from_bytes: int | None = None,
        context: RunContext,
    ) -> None:
        super().__init__()
        _check(every_seconds, max_time_share=max_time_share, keep_last=keep_last, from_bytes=background_from_bytes)
        self._context = context
        if every_tokens is not None:
            every_steps = _steps_of(every_tokens, every_steps=every_steps, context=context)
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.checkpoint.every_steps")
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self._max_time_share = max_time_share
        self._retention = Retention(keep_last=keep_last, keep_best=keep_best, scores=context.scores)
        self._behind = BackgroundSaves(from_bytes=background_from_bytes, report=self._log_outcome)
        self._saved_step = 0
        self._first_step = 0
        self._tried_at = time.monotonic()
        self._took_seconds = 0.0
        self._failures = 0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = trainer.global_step  # nothing to save at step 0; any other step came from a checkpoint
        self._first_step = trainer.global_step
        self._tried_at = time.monotonic()
        if self._context.is_main_process:
            clear_leftovers(self._context.checkpoints_folder)
            set_aside_after(self._context.checkpoints_folder, trainer.global_step)

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self._behind.hold_compute()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._behind.poll()
        if self._comes_soon(trainer.global_step):
            self._behind.prepare(trainer, pl_module)
        is_best = self._retention.keep_best and self._context.scores.is_new_best(trainer.global_step)
        if is_best or self._interval.is_due(trainer, batch_idx) or self._is_time(trainer, batch_idx):
            self._save(trainer, pl_module, is_last=trainer.global_step >= self._context.last_step.steps)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        with self._context.events.pause("checkpoint", step=trainer.global_step):
            waited = self._settle(trainer)
            self._behind.close()
        if waited and self._context.log is not None:  # of the end, not of another checkpoint
            self._context.append(trainer.global_step, {"checkpoint/wait_seconds": waited})
        if trainer.global_step != self._saved_step:
            self._save(trainer, pl_module, is_last=True)

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Wait for the checkpoint in flight, perhaps the only copy of the last steps."""
        self._behind.finish_alone(trainer)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        step = trainer.global_step
        checkpoint[FACTS] = {
            "step": step,
            "tokens": self._context.tokens_at(step),
            "identity": dict(self._context.identity),
            "metrics": self._metrics_at(step),
            "left_out": [*self._context.plan.batch.left_out_before(step)],
            "attempt": self._context.attempt,
        }

    def _is_time(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        if self._every_seconds is None or not is_step_end(trainer, batch_idx):
            return False
        if trainer.world_size > 1 and trainer.global_step % AGREE_EVERY_STEPS:
            return False
        wait_seconds = max(self._every_seconds, self._took_seconds / self._max_time_share)
        is_time = time.monotonic() - self._tried_at >= wait_seconds and not self._behind.is_busy
        return trainer.strategy.broadcast(is_time)

    def _comes_soon(self, step: int) -> bool:
        """Return whether a background save is near, for its memory to be made ready."""
        if step == self._first_step or not self._behind.is_wanted:
            return False
        if self._every_steps is not None:
            return step - step % self._every_steps + self._every_steps < self._context.last_step.steps
        return self._every_seconds is not None and time.monotonic() - self._tried_at >= self._every_seconds / 2

    def _metrics_at(self, step: int) -> dict[str, float]:
        """Return the log's metrics of this step; only the first rank has a log, and only it writes the manifest."""
        log = self._context.log
        points = [log.latest(name) for name in (TRAIN_LOSS, BITS_PER_BYTE)] if log else []
        here = [point.metrics for point in points if point and point.step == step]
        return {name: value for metrics in here for name, value in metrics.items()}

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule, *, is_last: bool) -> None:
        """Save this step on all ranks, and agree on the outcome: saved, failed, or on its way."""
        unsound = self._unsound(trainer, module)
        began = self._tried_at = time.monotonic()
        with self._context.events.pause("checkpoint", step=trainer.global_step):
            waited = self._settle(trainer)
            if unsound:
                self._report(unsound, is_last=is_last)
                return
            behind = not is_last and self._behind.is_possible(trainer, module)
            problem = self._try(trainer, behind=behind)
            if problem and behind:
                self._behind.give_up(problem)
                behind, problem = False, self._try(trainer, behind=False)
        self._took_seconds = time.monotonic() - began
        if behind:
            self._behind.has_begun(trainer.global_step, stall_seconds=self._took_seconds, wait_seconds=waited)
        elif problem:
            self._report(problem, is_last=is_last)
        else:
            self._failures, self._saved_step = 0, trainer.global_step
            if self._context.is_main_process:
                num_bytes = sum(path.stat().st_size for path in self._path(trainer).rglob("*"))
                took = self._took_seconds
                self._log_outcome(SaveOutcome(trainer.global_step, took, waited, None, took - waited, num_bytes))

    def _unsound(self, trainer: pl.Trainer, module: pl.LightningModule) -> str | None:
        """Say why a step is not to be saved, alike on all ranks; this waits for the device, still at work on it."""
        assert isinstance(module, CausalLMModule)
        with self._context.events.stopwatch.spending("compute"):
            is_sound = module.step_metrics.left_sound_weights
            if is_sound is None or trainer.strategy.reduce_boolean_decision(bool(is_sound)):
                return None
        return f"Step {trainer.global_step} is not saved: its loss or gradient norm is not finite."

    def _try(self, trainer: pl.Trainer, *, behind: bool) -> str | None:
        """Write this step's checkpoint, or hand it over; return on every rank why the first one could not."""
        problem, path = None, self._path(trainer)
        try:
            with evaluation_weights(trainer.optimizers):
                trainer.save_checkpoint(path, storage_options=self._hand_over(path) if behind else None)
                if any(isinstance(optimizer, WeightSwitch) for optimizer in trainer.optimizers):
                    self._behind.hold_compute()  # the weights are about to be moved back
        except Diverged:  # every rank's: a look at the steps before the save
            raise
        except (OSError, EnvironmentProblem) as failure:
            trainer.strategy.barrier("Trainer.save_checkpoint")  # the other ranks are waiting there
            problem = str(failure)
        if problem is None and not behind and self._context.is_main_process:
            problem = self._retain(path)
        return trainer.strategy.broadcast(problem)

    def _retain(self, path: Path) -> str | None:
        try:
            self._retention.after(path)
        except EnvironmentProblem as problem:
            return str(problem)
        return None

    def _path(self, trainer: pl.Trainer) -> Path:
        return self._context.checkpoints_folder / f"step_{trainer.global_step:08d}"

    def _hand_over(self, path: Path) -> Callable[[Callable[[], int]], None]:
        def begin(write: Callable[[], int]) -> None:
            is_main = self._context.is_main_process
            self._behind.begin(WriteAndRetain(write=write, path=path, retention=self._retention) if is_main else write)

        return begin

    def _settle(self, trainer: pl.Trainer) -> float:
        """Wait for the checkpoint in flight, report its outcome on all ranks, and return the seconds; 0 without one."""
        began = time.monotonic()
        outcome = self._behind.settle(trainer)
        if outcome is None:
            return 0.0
        if outcome.problem:
            self._report(f"Step {outcome.step} is not saved: {outcome.problem}", is_last=False)
        else:
            self._failures, self._saved_step = 0, outcome.step
        return time.monotonic() - began

    def _log_outcome(self, outcome: SaveOutcome) -> None:
        """Log a checkpoint's time and bytes."""
        if self._context.log is None or outcome.problem:
            return
        metrics = {
            "checkpoint/stall_seconds": outcome.stall_seconds,
            "checkpoint/copy_seconds": outcome.stall_seconds - outcome.wait_seconds,
            "checkpoint/wait_seconds": outcome.wait_seconds,
            "checkpoint/write_seconds": outcome.write_seconds,
            "checkpoint/bytes": outcome.num_bytes,
        }
        self._context.append(outcome.step, metrics)

    def _report(self, problem: str, *, is_last: bool) -> None:
        """Report a failed save.

        Raises:
            EnvironmentProblem: It was the run's last, or the third in a row.
        """
        self._failures += 1
        if is_last:
            raise EnvironmentProblem(f"The last checkpoint of the run could not be saved. {problem}")
        if self._failures >= FAILURES_BEFORE_GIVING_UP:
            raise EnvironmentProblem(f"{self._failures} checkpoints in a row could not be saved. {problem}")
        if self._context.is_main_process:
            _LOG.error(
                "NO CHECKPOINT (failure %d; the run ends at %d): %s", self._failures, FAILURES_BEFORE_GIVING_UP, problem
            )


def _check(every_seconds: float | None, *, max_time_share: float, keep_last: int, from_bytes: int | None) -> None:
    if from_bytes is not None and from_bytes < 0:
        key = f"callbacks.checkpoint.background_from_bytes={from_bytes}"
        raise ConfigurationError(f"{key} is below 0; nearest valid: 0 (every state; null: none).")
    require_count("callbacks.checkpoint.keep_last", keep_last)
    if every_seconds is not None and every_seconds <= 0:
        raise ConfigurationError(f"callbacks.checkpoint.every_seconds={every_seconds} is not above 0; null is never.")
    if not 0 < max_time_share <= 1:
        raise ConfigurationError(
            f"callbacks.checkpoint.max_time_share={max_time_share} is not above 0 and at most 1; 0.05 is 5%."
        )


def _steps_of(every_tokens: int, *, every_steps: int | None, context: RunContext) -> int:
    """Return the whole number of steps nearest to so many tokens, at least one."""
    key = f"callbacks.checkpoint.every_tokens={every_tokens}"
    if every_steps is not None:
        raise ConfigurationError(f"{key} and every_steps={every_steps} both set the interval; leave one of them null.")
    require_count("callbacks.checkpoint.every_tokens", every_tokens)
    return max(1, round(every_tokens / context.plan.batch.tokens_per_step))


def checkpoint_facts(
    *, keep_last: int = 2, background_from_bytes: int | None = None, every_seconds: float | None = None
) -> CallbackFacts:
    """Keep the last few, and copy large states before they are written."""
    return CallbackFacts(
        acts_between_steps=True,
        num_kept=keep_last,
        snapshot_from_bytes=background_from_bytes,
        saves_every_seconds=every_seconds,
    )
