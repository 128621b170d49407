"""Save a run for resuming: every few steps or seconds, and at its end; keep the last few and the best."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import lightning.pytorch as pl
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import BITS_PER_BYTE, TRAIN_LOSS
from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count, require_number
from lmtrain.errors import Diverged, EnvironmentProblem
from lmtrain.storage.hashed_folder import clear_leftovers
from lmtrain.training.checkpointing.background_saves import BackgroundSaves, SaveOutcome
from lmtrain.training.checkpointing.checkpoint_io import FACTS, AtomicCheckpointIO
from lmtrain.training.checkpointing.checkpoints import HeldOutScores, Retention, WriteAndRetain, set_aside_after
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.weight_average import WeightSwitch, evaluation_weights

_LOG = logging.getLogger(__name__)
FAILURES_BEFORE_GIVING_UP: Final = 3
AGREE_EVERY_STEPS: Final = 10


class Checkpoint(RunCallback):
    """Save to `checkpoints/step_00000200` every `every_steps` steps or `every_seconds` seconds, and at the end.

    `folder` None is the run's, or `lmtrain/checkpoints` below a plain Trainer's `default_root_dir`; there such a folder
    is the `ckpt_path` of a fit with this callback.

    Saving by the clock waits until it takes at most `max_time_share` of the time; over several ranks the first one's
    clock decides, every 10 steps. The `keep_last` newest stay, and with `keep_best` the one of the lowest bits per byte
    measured at its own step; the others go once the new one is verified. A failed save is reported, and training goes
    on with the older checkpoints; the third in a row, or the run's last, ends the run. A step with a non-finite loss is
    never saved.

    A state of `background_from_bytes` or more (None: never) holds training up only until it is copied on the host;
    a thread writes the copy. One is in flight at most: the next save and the end of the run wait for it, and
    report its failure. The run's last checkpoint the trainer writes itself, having nothing else to do.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        max_time_share: float = 1.0,
        keep_last: int = 2,
        keep_best: bool = True,
        background_from_bytes: int | None = None,
        folder: str | Path | None = None,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.checkpoint.every_steps"))
        require_count("callbacks.checkpoint.keep_last", keep_last)
        require_number("callbacks.checkpoint.every_seconds", every_seconds, above=0, usual="600")
        require_number("callbacks.checkpoint.max_time_share", max_time_share, above=0, at_most=1, usual="1")
        require_number("callbacks.checkpoint.background_from_bytes", background_from_bytes, at_least=0, usual="null")
        self._given_folder = None if folder is None else Path(folder)
        self._scores = HeldOutScores() if context is None else context.scores
        self._every_seconds = every_seconds
        self._max_time_share = max_time_share
        self._retention = Retention(keep_last=keep_last, keep_best=keep_best, scores=self._scores)
        self._behind = BackgroundSaves(from_bytes=background_from_bytes, report=self._log_outcome)
        self._saved_step = 0
        self._tried_at = time.monotonic()
        self._took_seconds = 0.0
        self._failures = 0

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._folder = self._given_folder or self.run.folder / "checkpoints"
        if isinstance(trainer.strategy.checkpoint_io, TorchCheckpointIO):  # Lightning's own loses data on a full disk
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = trainer.global_step  # nothing to save at step 0; any other step came from a checkpoint
        self._tried_at = time.monotonic()
        if trainer.is_global_zero:
            clear_leftovers(self._folder)
            set_aside_after(self._folder, trainer.global_step)

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
        step, is_end = trainer.global_step, self.is_step_end(trainer, batch_idx)
        is_best = self._retention.keep_best and self._scores.is_new_best(step)
        # A plain Trainer's state after its end is that of a new epoch.
        ends_here = self.context is None and trainer.should_stop
        if is_best or (is_end and (ends_here or self.is_due(step) or self._is_time(trainer))):
            self._save(trainer, pl_module, is_last=step >= self.run.last_step.steps)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        with self.run.events.pause("checkpoint", step=trainer.global_step):
            waited = self._settle(trainer)
        if waited:  # of the end, not of another checkpoint
            self.run.append(trainer.global_step, {"checkpoint/wait_seconds": waited})
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
        step, context = trainer.global_step, self.context
        checkpoint[FACTS] = {"step": step, "tokens": 0, "identity": {}, "metrics": self._metrics_at(trainer)}
        if context is not None:
            checkpoint[FACTS] |= {
                "tokens": context.tokens_at(step),
                "identity": dict(context.identity),
                "left_out": [*context.plan.batch.left_out_before(step)],
                "attempt": context.attempt,
            }

    def _is_time(self, trainer: pl.Trainer) -> bool:
        if self._every_seconds is None:
            return False
        if trainer.world_size > 1 and trainer.global_step % AGREE_EVERY_STEPS:
            return False
        wait_seconds = max(self._every_seconds, self._took_seconds / self._max_time_share)
        is_time = time.monotonic() - self._tried_at >= wait_seconds and not self._behind.is_busy
        return trainer.strategy.broadcast(is_time)

    def _metrics_at(self, trainer: pl.Trainer) -> dict[str, float]:
        """Return the log's metrics of this step; only the first rank has a log, and only it writes the manifest."""
        step = trainer.global_step
        if self.context is None:
            scored = self._scores.metric if self._scores.keeps_best else None
            found = trainer.callback_metrics
            return {name: float(found[name]) for name in (TRAIN_LOSS, scored) if name in found}
        log = self.context.log
        points = [log.latest(name) for name in (TRAIN_LOSS, BITS_PER_BYTE)] if log else []
        here = [point.metrics for point in points if point and point.step == step]
        return {name: value for metrics in here for name, value in metrics.items()}

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule, *, is_last: bool) -> None:
        """Save this step on all ranks, and agree on the outcome: saved, failed, or on its way."""
        unsound = self._unsound(trainer, module)
        began = self._tried_at = time.monotonic()
        with self.run.events.pause("checkpoint", step=trainer.global_step):
            waited = self._settle(trainer)
            if unsound:
                self._report(trainer, unsound, is_last=is_last)
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
            self._report(trainer, problem, is_last=is_last)
        else:
            self._failures, self._saved_step = 0, trainer.global_step
            if trainer.is_global_zero:
                num_bytes = sum(path.stat().st_size for path in self._path(trainer).rglob("*"))
                took = self._took_seconds
                self._log_outcome(SaveOutcome(trainer.global_step, took, waited, None, took - waited, num_bytes))

    def _unsound(self, trainer: pl.Trainer, module: pl.LightningModule) -> str | None:
        """Say why a step is not to be saved, alike on all ranks; this waits for the device, still at work on it."""
        with self.run.events.stopwatch.spending("compute"):
            is_sound = self.steps_of(trainer, module).left_sound_weights
            if is_sound is None or trainer.strategy.reduce_boolean_decision(bool(is_sound)):
                return None
        return f"Step {trainer.global_step} is not saved: its loss or gradient norm is not finite."

    def _try(self, trainer: pl.Trainer, *, behind: bool) -> str | None:
        """Write this step's checkpoint, or hand it over; return on every rank why the first one could not."""
        problem, path = None, self._path(trainer)
        try:
            with evaluation_weights(trainer.optimizers):
                trainer.save_checkpoint(path, storage_options=self._hand_over(trainer, path) if behind else None)
                if any(isinstance(optimizer, WeightSwitch) for optimizer in trainer.optimizers):
                    self._behind.hold_compute()  # the weights are about to be moved back
        except Diverged:  # every rank's: a look at the steps before the save
            raise
        except (OSError, EnvironmentProblem) as failure:
            trainer.strategy.barrier("Trainer.save_checkpoint")  # the other ranks are waiting there
            problem = str(failure)
        if problem is None and not behind and trainer.is_global_zero:
            try:
                self._retention.after(path)
            except EnvironmentProblem as unkept:
                problem = str(unkept)
        return trainer.strategy.broadcast(problem)

    def _path(self, trainer: pl.Trainer) -> Path:
        return self._folder / f"step_{trainer.global_step:08d}"

    def _hand_over(self, trainer: pl.Trainer, path: Path) -> Callable[[Callable[[], int]], None]:
        def begin(write: Callable[[], int]) -> None:
            is_main = trainer.is_global_zero
            self._behind.begin(WriteAndRetain(write=write, path=path, retention=self._retention) if is_main else write)

        return begin

    def _settle(self, trainer: pl.Trainer) -> float:
        """Wait for the checkpoint in flight, report its outcome on all ranks, and return the seconds; 0 without one."""
        began = time.monotonic()
        outcome = self._behind.settle(trainer)
        if outcome is None:
            return 0.0
        if outcome.problem:
            self._report(trainer, f"Step {outcome.step} is not saved: {outcome.problem}", is_last=False)
        else:
            self._failures, self._saved_step = 0, outcome.step
        return time.monotonic() - began

    def _log_outcome(self, outcome: SaveOutcome) -> None:
        """Log a checkpoint's time and bytes."""
        if outcome.problem:
            return
        metrics = {
            "checkpoint/stall_seconds": outcome.stall_seconds,
            "checkpoint/copy_seconds": outcome.stall_seconds - outcome.wait_seconds,
            "checkpoint/wait_seconds": outcome.wait_seconds,
            "checkpoint/write_seconds": outcome.write_seconds,
            "checkpoint/bytes": outcome.num_bytes,
        }
        self.run.append(outcome.step, metrics)

    def _report(self, trainer: pl.Trainer, problem: str, *, is_last: bool) -> None:
        """Report a failed save."""
        self._failures += 1
        if is_last:
            raise EnvironmentProblem(f"The last checkpoint of the run could not be saved. {problem}")
        if self._failures >= FAILURES_BEFORE_GIVING_UP:
            raise EnvironmentProblem(f"{self._failures} checkpoints in a row could not be saved. {problem}")
        if trainer.is_global_zero:
            _LOG.error(
                "NO CHECKPOINT (failure %d; the run ends at %d): %s", self._failures, FAILURES_BEFORE_GIVING_UP, problem
            )


def checkpoint_facts(*, keep_last: int = 2, background_from_bytes: int | None = None) -> CallbackFacts:
    """Keep the last few, and copy large states before they are written."""
    return CallbackFacts(acts_between_steps=True, num_kept=keep_last, snapshot_from_bytes=background_from_bytes)
