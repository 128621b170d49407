"""Show a run while it trains: a live panel on a terminal, a plain line every few seconds anywhere else."""

import contextlib
import sys
import time
from typing import Any, Final

import lightning.pytorch as pl
from rich.console import Console, RenderableType
from rich.live import Live
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import (
    BITS_PER_BYTE,
    EQUAL_GROUPS,
    LOSS_SHARE,
    MARGIN,
    PREFERRED,
    REWARD,
    TRAIN_LOSS,
    VALIDATION_BYTES,
)
from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.live_view import Snapshot, line, panel
from lmtrain.tracking.run_log import Point
from lmtrain.tracking.stopwatch import KINDS
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from lmtrain.training.context import RunCallback, RunContext, parts_of
from lmtrain.training.intervals import is_step_end
from lmtrain.training.stopping import StoppedEarly

REFRESHES_PER_SECOND: Final = 2
LABELS: Final = {
    "first_step": "first step, and compilation where asked…",
    "validation": "validating…",
    "checkpoint": "saving a checkpoint…",
    "text_samples": "writing a sample…",
}
# Fields of a snapshot and their metrics.
SHOWN: Final = {
    "loss": TRAIN_LOSS,
    "reward": REWARD,
    "equal_groups": EQUAL_GROUPS,
    "preferred": PREFERRED,
    "margin": MARGIN,
    "lr": "train/lr",
    "tokens_per_second": "speed/tokens_per_second",
    "mfu": "speed/mfu_palm",
    "usd": "cost/usd",
    "projected_usd": "cost/projected_usd",
    "kwh": "energy/kwh",
    "projected_kwh": "energy/projected_kwh",
}


class Progress(RunCallback):
    """Show tokens and steps of the budget, loss, speed, MFU, validation, time left, dollars and energy.

    It never asks the device. `every_seconds` is how often a line comes without a terminal.
    """

    def __init__(self, *, every_seconds: float = 5.0, context: RunContext | None = None) -> None:
        super().__init__(context)
        if every_seconds < 0:
            raise ConfigurationError(f"callbacks.progress.every_seconds: must be 0 or more, got {every_seconds}.")
        self._every_seconds = every_seconds
        self._live: Live | None = None
        self._activity = "starting…"
        self._trainer: pl.Trainer | None = None
        self._step = 0
        self._first: tuple[int, float] | None = None  # step and time of the first step's end: it compiled
        self._pace: float | None = None  # seconds a step since
        self._validation: dict[int, float] = {}
        self._validation_bytes: float | None = None  # read for each of them
        self._printed_at = time.monotonic()
        self._printed_step = -1

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._trainer = trainer
        if sys.stdout.isatty():
            self._live = Live(get_renderable=self._panel, console=Console(), refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start()
        else:
            _print(f"{self.run.folder.name}: {self._length()}; {LABELS['first_step']}")
            self._printed_at = time.monotonic()

    def _length(self) -> str:
        """State the run's tokens and steps; under a budget of time its first steps' speed decides them."""
        last = self.run.last_step
        if self.context is None:
            return format_count(last.steps, "step") if last.is_known else "training"
        tokens_per_step = self.context.plan.batch.tokens_per_step
        if last.seconds is None:
            steps = format_count(last.steps, "step")
            return f"{format_quantity(last.steps * tokens_per_step)} tokens in {steps} of {tokens_per_step}"
        clock = format_quantity(last.seconds, "seconds")
        return f"{clock} on the clock, in steps of {tokens_per_step}, their number by the speed of the first ones"

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step, self._activity = trainer.global_step, "training"

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._note_validation()  # the one before the first step, whatever the callbacks' order

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not trainer.is_global_zero or not is_step_end(trainer, batch_idx):
            return
        self._step = trainer.global_step
        self._note_pace()
        self._note_validation()
        if time.monotonic() - self._printed_at >= self._every_seconds:
            self._print_state()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self._printed_step != self._step:
            self._print_state()
        self._stop("done" if self._step >= self.run.last_step.steps else "stopped")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop("stopped" if isinstance(exception, StoppedEarly) else "failed")

    @override
    def state_dict(self) -> dict[str, Any]:
        self._note_validation()  # a checkpoint of this very step may be written before this callback's turn
        return {"validation": dict(self._validation), "validation_bytes": self._validation_bytes}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validation = dict(state_dict["validation"])
        self._validation_bytes = state_dict.get("validation_bytes")

    def _print_state(self) -> None:
        self._printed_at, self._printed_step = time.monotonic(), self._step
        if self._live is None:
            _print(line(self._snapshot()))

    def _stop(self, activity: str) -> None:
        self._activity = activity
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self) -> RenderableType:
        return panel(self._snapshot())

    def _note_pace(self) -> None:
        """Measure the seconds of a step, pauses left out."""
        now = time.monotonic() - self.run.events.paused_seconds
        self._first = self._first or (self._step, now)
        if done := self._step - self._first[0]:
            self._pace = (now - self._first[1]) / done

    def _note_validation(self) -> None:
        """Keep the newest score; at every step, as the log gives only the last one.

        A score of another part of the text stands alone: earlier ones are left out.
        """
        if (measured := self._latest(BITS_PER_BYTE)) is not None:
            num_bytes = measured.metrics.get(VALIDATION_BYTES)
            if num_bytes != self._validation_bytes:
                self._validation, self._validation_bytes = {}, num_bytes
            self._validation[measured.step] = measured.metrics[BITS_PER_BYTE]

    def _latest(self, metric: str) -> Point | None:
        """Return the newest point with a metric; a plain Trainer has values without their steps."""
        if self.context is not None:
            return self.context.log.latest(metric) if self.context.log else None
        value = None if self._trainer is None else self._trainer.callback_metrics.get(metric)
        return None if value is None else Point(0.0, self._step, 0, {metric: float(value)})

    def _value(self, metric: str) -> float | None:
        point = self._latest(metric)
        return None if point is None else point.metrics[metric]

    def _tokens_per_step(self) -> int:
        if self.context is not None:
            return self.context.plan.batch.tokens_per_step
        return 0 if self._trainer is None else parts_of(self._trainer).first_step_tokens

    def _seconds_left(self, step: int) -> float | None:
        """Return the time of the steps left and of the pauses with them; None before there is a pace."""
        if self._trainer is not None and self._trainer.should_stop and not self.run.last_step.goes_on_later:
            return 0.0
        steps = self.run.last_step.steps - step
        if self._pace is None or not self.run.last_step.is_known:
            return None
        pauses = 0.0 if self.context is None else self.context.pauses_to_come(step, step_seconds=self._pace)
        return self._pace * steps + pauses if steps > 0 else 0.0

    def _snapshot(self) -> Snapshot:
        """Collect the newest numbers from the run's log."""
        paused_for = self.run.events.paused_for
        self._note_validation()
        # In a pause after a step this callback's turn is still to come.
        step = self._step if self._trainer is None else max(self._step, self._trainer.global_step)
        values: dict[str, Any] = {field: self._value(metric) for field, metric in SHOWN.items()}
        share, saved = self._value(LOSS_SHARE), list_checkpoints(self.run.folder / "checkpoints")
        shares = {kind: self._value(f"time/{kind}_share") for kind in KINDS}
        return Snapshot(
            **values,
            name=self.run.folder.name,
            activity=LABELS.get(paused_for, paused_for) if paused_for else self._activity,
            step=step,
            num_steps=self.run.last_step.steps if self.run.last_step.is_known else None,
            tokens_per_step=self._tokens_per_step(),
            loss_share=1.0 if share is None else share,
            seconds_left=self._seconds_left(step),
            peak_is_known=self.context is None or self.context.plan.peak_flops is not None,
            validation=tuple(value for _, value in sorted(self._validation.items())),
            checkpoint_step=saved[-1].step if saved else None,
            time_shares={kind: value for kind, value in shares.items() if value is not None},
        )


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # training goes on after its reader's end and on a full disk
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def progress_facts() -> CallbackFacts:
    """Draw a panel."""
    return CallbackFacts(acts_between_steps=True)
