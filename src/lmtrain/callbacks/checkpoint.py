"""Save a run so that it can go on: every so many steps or seconds, and at its end; keep the last few and the best."""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpoint_io import FACTS
from lmtrain.training.checkpoints import CheckpointFacts, list_checkpoints
from lmtrain.training.context import RunContext
from lmtrain.training.evaluation_weights import evaluation_weights
from lmtrain.training.module import CausalLMModule
from lmtrain.training.step_interval import StepInterval
from lmtrain.training.steps import is_step_end

_LOG = logging.getLogger(__name__)
BEST_BY = "validation/bits_per_byte"  # lower is better
FAILURES_BEFORE_GIVING_UP = 3
AGREE_EVERY_STEPS = 10


class Checkpoint(pl.Callback):
    """Save to `checkpoints/step_00000200` every `every_steps` steps or `every_seconds` seconds, and at the end.

    Saving by the clock waits until it takes at most `max_time_share` of the time; over several ranks the first one's
    clock decides, every 10 steps. The `keep_last` newest stay, and with `keep_best` the one of the lowest bits per byte
    measured at its own step; the others go once the new one is verified. A save that fails is reported and training
    goes on with what there was; the third in a row, or the run's last, ends the run. A step whose loss is not finite is
    never saved.
    """

    def __init__(
        self,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        max_time_share: float = 1.0,
        keep_last: int = 2,
        keep_best: bool = True,
        context: RunContext,
    ) -> None:
        super().__init__()
        if keep_last < 1:
            raise ConfigurationError(f"callbacks.checkpoint.keep_last={keep_last} is below 1; nearest valid: 1.")
        if every_seconds is not None and every_seconds <= 0:
            raise ConfigurationError(
                f"callbacks.checkpoint.every_seconds={every_seconds} is not above 0; null is never."
            )
        if not 0 < max_time_share <= 1:
            raise ConfigurationError(
                f"callbacks.checkpoint.max_time_share={max_time_share} is not above 0 and at most 1; 0.05 is 5%."
            )
        self._context = context
        self._interval = StepInterval(every_steps, last_step=context.last_step, key="callbacks.checkpoint.every_steps")
        self._every_seconds = every_seconds
        self._max_time_share = max_time_share
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._saved_step = 0
        self._tried_at = time.monotonic()
        self._took_seconds = 0.0
        self._failures = 0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._saved_step = trainer.global_step  # nothing to save at step 0; any other step came from a checkpoint
        self._tried_at = time.monotonic()
        if self._context.is_main_process:
            _set_aside_after(self._context.checkpoints_folder, trainer.global_step)

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._interval.is_due(trainer, batch_idx) or self._is_time(trainer, batch_idx):
            self._save(trainer, pl_module, is_last=trainer.global_step >= self._context.last_step.steps)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.global_step != self._saved_step:
            self._save(trainer, pl_module, is_last=True)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        step = trainer.global_step
        checkpoint[FACTS] = {
            "step": step,
            "tokens": step * self._context.plan.batch.tokens_per_step,
            "identity": dict(self._context.identity),
            "metrics": self._metrics_at(step),
        }

    def _is_time(self, trainer: pl.Trainer, batch_idx: int) -> bool:
        if self._every_seconds is None or not is_step_end(trainer, batch_idx):
            return False
        if trainer.world_size > 1 and trainer.global_step % AGREE_EVERY_STEPS:
            return False
        wait_seconds = max(self._every_seconds, self._took_seconds / self._max_time_share)
        return trainer.strategy.broadcast(time.monotonic() - self._tried_at >= wait_seconds)

    def _metrics_at(self, step: int) -> dict[str, float]:
        """Return what the log has for this step; only the first rank has a log, and only it writes the manifest."""
        log = self._context.log
        points = [log.latest(name) for name in ("train/loss", BEST_BY)] if log else []
        here = [point.metrics for point in points if point and point.step == step]
        return {name: value for metrics in here for name, value in metrics.items()}

    def _save(self, trainer: pl.Trainer, module: pl.LightningModule, *, is_last: bool) -> None:
        """Save this step on all ranks, and agree on whether that worked."""
        self._tried_at = time.monotonic()
        path = self._context.checkpoints_folder / f"step_{trainer.global_step:08d}"
        with self._context.events.pause("checkpoint", step=trainer.global_step):
            problem = self._write(trainer, module, path)
            if problem is None and self._context.is_main_process:
                problem = self._delete_old(path)
        problem = trainer.strategy.broadcast(problem)
        self._took_seconds = time.monotonic() - self._tried_at
        if problem is None:
            self._failures, self._saved_step = 0, trainer.global_step
        else:
            self._report(problem, is_last=is_last)

    def _write(self, trainer: pl.Trainer, module: pl.LightningModule, path: Path) -> str | None:
        """Write one checkpoint; return why there is none."""
        assert isinstance(module, CausalLMModule)
        is_sound = module.step_metrics.left_sound_weights
        if is_sound is not None and not bool(is_sound):
            return f"Step {trainer.global_step} is not saved: its loss or gradient norm is not finite."
        try:
            with evaluation_weights(trainer.optimizers):
                trainer.save_checkpoint(path)
        except (OSError, EnvironmentProblem) as problem:
            trainer.strategy.barrier("Trainer.save_checkpoint")  # where the ranks that did not fail are waiting
            return str(problem)
        return None

    def _delete_old(self, new: Path) -> str | None:
        """Delete what is neither recent nor best, if the new one is whole; return what is wrong with it otherwise."""
        checkpoints = list_checkpoints(self._context.checkpoints_folder)
        old = checkpoints[: -self._keep_last]
        best = _best(checkpoints) if self._keep_best else None
        unwanted = [facts.path for facts in old if facts != best]
        if unwanted and (problem := damage(new)):
            return f"{new} was written, but {problem}; older checkpoints are kept."
        for path in unwanted:
            _delete(path)
        return None

    def _report(self, problem: str, *, is_last: bool) -> None:
        """Say that a save failed.

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


def _best(checkpoints: list[CheckpointFacts]) -> CheckpointFacts | None:
    measured = [facts for facts in checkpoints if BEST_BY in facts.metrics]
    return min(measured, key=lambda facts: facts.metrics[BEST_BY], default=None)


def _delete(path: Path) -> None:
    """Delete a checkpoint so that a crash on the way leaves nothing that looks like one."""
    hidden = path.with_name(f".{path.name}.deleting")
    try:
        path.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as problem:
        _LOG.warning("Old checkpoint %s could not be deleted: %s", path, problem)


def _set_aside_after(folder: Path, step: int) -> None:
    """Rename checkpoints of later steps, which belong to a course of this run that was left."""
    for path in folder.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and int(number) > step:
            left = path.with_name(f"left_{path.name}_{time.time_ns()}")
            path.rename(left)
            _LOG.warning("Checkpoint %s is of a later step than the one resumed from; it is now %s.", path, left.name)
