"""Show a run while it trains: a live panel on a terminal, a plain line every few seconds anywhere else."""

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import lightning.pytorch as pl
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from lmtrain.accounting.observed.metric_names import (
    BITS_PER_BYTE,
    EQUAL_GROUPS,
    LOSS_SHARE,
    MARGIN,
    PREFERRED,
    REWARD,
    TRAIN_LOSS,
    speed_name,
)
from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.accounting.quantities import format_count, format_quantity
from lmtrain.tracking.run_log import Point
from lmtrain.training.context import RunCallback, RunContext, parts_of
from lmtrain.training.stopping import StoppedEarly

REFRESHES_PER_SECOND: Final = 2
PANEL_COLUMNS: Final = 92
LABELS: Final = {
    "first_step": "first step, and compilation where asked…",
    "validation": "validating…",
    "checkpoint": "saving a checkpoint…",
    "text_samples": "writing a sample…",
}
SPEED: Final = "speed/tokens_per_second"
# The figures by their metrics; the last two come with those expected of the whole run.
FIGURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "loss": (TRAIN_LOSS, "{:.3f}".format),
    "reward": (REWARD, "{:.4g}".format),
    "equal groups": (EQUAL_GROUPS, "{:.0%}".format),
    "preferred": (PREFERRED, "{:.0%} of pairs".format),
    "margin": (MARGIN, "{:.3g}".format),
    "validation": (BITS_PER_BYTE, "{:.3f} bits/byte".format),
    "lr": ("train/lr", "{:.2e}".format),
    "MFU": ("speed/mfu_palm", "{:.1%}".format),
    "goodput": ("speed/goodput", "{:.1%}".format),
    "cost": ("cost/usd", partial(format_quantity, unit="usd")),
}
WHOLE: Final = {"cost/usd": "cost/projected_usd"}


class Progress(RunCallback):
    """Show tokens and steps of the budget, loss, speed, MFU, validation, time left and dollars.

    It never asks the device. `every_seconds` is how often a line comes without a terminal.
    """

    def __init__(self, *, every_seconds: float = 5.0, context: RunContext | None = None) -> None:
        super().__init__(context)
        require_number("callbacks.progress.every_seconds", every_seconds, at_least=0, usual="5")
        self._every_seconds = every_seconds
        self._live: Live | None = None
        self._activity = "starting…"
        self._trainer: pl.Trainer | None = None
        self._step = 0
        self._first: tuple[int, float] | None = None  # step and time of the first step's end: it compiled
        self._pace: float | None = None  # seconds a step since
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
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._step = trainer.global_step
        self._note_pace()
        if time.monotonic() - self._printed_at >= self._every_seconds:
            self._print_state()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.is_global_zero and self._printed_step != self._step:
            self._print_state()
        last = self.run.last_step
        is_cut = last.goes_on_later or (last.is_known and self._step < last.steps)
        self._stop("stopped" if is_cut else "done")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop("stopped" if isinstance(exception, StoppedEarly) else "failed")

    def _print_state(self) -> None:
        self._printed_at, self._printed_step = time.monotonic(), self._step
        if self._live is None:
            _print(" | ".join([*self._done(), *(f"{name} {text}" for name, text in self._figures().items())]))

    def _stop(self, activity: str) -> None:
        self._activity = activity
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _note_pace(self) -> None:
        """Measure the seconds of a step, pauses left out."""
        now = time.monotonic() - self.run.events.paused_seconds
        self._first = self._first or (self._step, now)
        if done := self._step - self._first[0]:
            self._pace = (now - self._first[1]) / done

    def _latest(self, metric: str) -> Point | None:
        """Return the newest point with a metric; a plain Trainer has values without their steps."""
        if self.context is not None:
            return self.context.log.latest(metric) if self.context.log else None
        value = None if self._trainer is None else self._trainer.callback_metrics.get(metric)
        return None if value is None else Point(0.0, self._step, 0, {metric: float(value)})

    def _value(self, metric: str) -> float | None:
        point = self._latest(metric)
        return None if point is None else point.metrics[metric]

    def _tokens_per_step(self) -> float:
        if self.context is not None:
            return self.context.plan.batch.tokens_per_step
        return 0 if self._trainer is None else parts_of(self._trainer).tokens_per_step

    @property
    def _newest_step(self) -> int:
        """Return the newest step; in a pause after it this callback's turn is still to come."""
        return self._step if self._trainer is None else max(self._step, self._trainer.global_step)

    def _share(self) -> float:
        last = self.run.last_step
        return min(1.0, self._newest_step / last.steps) if last.is_known and last.steps else 0.0

    def _done(self) -> list[str]:
        """State the steps, the tokens, and the time left."""
        last, tokens_per_step = self.run.last_step, self._tokens_per_step()
        steps, tokens = f"step {self._newest_step}", format_quantity(self._newest_step * tokens_per_step)
        if last.is_known:
            whole = format_quantity(last.steps * tokens_per_step)
            found = [f"{steps}/{last.steps}", f"{tokens} of {whole} tokens ({self._share():.0%})"]
        else:
            found = [steps, f"{tokens} tokens"]
        left = self._seconds_left()
        return found if left is None else [*found, f"{format_quantity(left, 'seconds')} left"]

    def _seconds_left(self) -> float | None:
        """Return the time of the steps left and of the pauses with them; None before there is a pace."""
        step, last = self._newest_step, self.run.last_step
        if self._trainer is not None and self._trainer.should_stop and not last.goes_on_later:
            return 0.0
        if self._pace is None or not last.is_known:
            return None
        pauses = 0.0 if self.context is None else self.context.pauses_to_come(step, step_seconds=self._pace)
        return self._pace * (last.steps - step) + pauses if last.steps > step else 0.0

    def _figures(self) -> dict[str, str]:
        """Return the newest figures by their names, those that are known."""
        found: dict[str, str] = {}
        for name, (metric, show) in FIGURES.items():
            if (value := self._value(metric)) is not None:
                whole = self._value(WHOLE[metric]) if metric in WHOLE else None
                found[name] = show(value) + ("" if whole is None else f" of about {show(whole)}")
        if (speed := self._value(SPEED)) is not None:
            share = self._value(LOSS_SHARE)
            found["speed"] = f"{format_quantity(round(speed))} {speed_name(1.0 if share is None else share)}"
        if saved := self._latest("checkpoint/bytes"):
            found["checkpoint"] = f"step {saved.step}"
        return found

    def _panel(self) -> RenderableType:
        """Draw the state: a bar, what is done, and two figures a row."""
        share, paused_for = self._share(), self.run.events.paused_for
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(ratio=1)
        bar.add_column(justify="right", width=6)
        bar.add_row(ProgressBar(total=1.0, completed=share, complete_style="cyan"), Text(f"{share:.1%}", style="bold"))
        figures = Table.grid(expand=True, padding=(0, 2, 0, 0))
        for ratio in (None, 1):
            figures.add_column(style="dim", no_wrap=True)
            figures.add_column(style="bold", ratio=ratio, overflow="fold")
        pairs = [*self._figures().items()]
        for first in range(0, len(pairs), 2):
            figures.add_row(*(Text(word) for pair in pairs[first : first + 2] for word in pair))
        return Panel(
            Group(bar, Text("   ".join(self._done()), style="dim"), Text(""), figures),
            title=Text(self.run.folder.name, style="bold"),
            title_align="left",
            subtitle=Text(LABELS.get(paused_for, paused_for) if paused_for else self._activity, style="dim"),
            subtitle_align="right",
            border_style="dim cyan",
            padding=(1, 1),
            width=PANEL_COLUMNS,
        )


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # training goes on after its reader's end and on a full disk
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


PROGRESS_FACTS: Final = CallbackFacts(acts_between_steps=True)
