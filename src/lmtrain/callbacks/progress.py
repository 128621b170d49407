"""Show a run while it trains: a live panel on a terminal, a plain line every few seconds anywhere else."""

import contextlib
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import lightning.pytorch as pl
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from lmtrain.accounting.quantities import format_quantity
from lmtrain.errors import ConfigurationError
from lmtrain.training.checkpoints import list_checkpoints
from lmtrain.training.context import RunContext
from lmtrain.training.steps import is_step_end

REFRESHES_PER_SECOND: Final = 2
PANEL_COLUMNS: Final = 92
LABELS: Final = {
    "first_step": "compiling…",
    "validation": "validating…",
    "checkpoint": "saving a checkpoint…",
    "text_samples": "writing a sample…",
}
BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is known of a run at a moment, None for not yet; `validation` is bits per byte, oldest first."""

    name: str
    activity: str
    step: int
    num_steps: int
    tokens_per_step: int
    loss: float | None = None
    lr: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    peak_is_known: bool = True
    usd: float | None = None
    validation: tuple[float, ...] = ()
    checkpoint_step: int | None = None

    @property
    def seconds_left(self) -> float | None:
        """Return how long the rest takes at the present speed, pauses not counted."""
        if not self.tokens_per_second:
            return None
        return (self.num_steps - self.step) * self.tokens_per_step / self.tokens_per_second


class Progress(pl.Callback):
    """Show tokens and steps of the budget, loss, speed, MFU, validation, time left and dollars; never asks the device.

    `every_seconds` is how often a line comes where there is no terminal.
    """

    def __init__(self, *, every_seconds: float = 5.0, context: RunContext) -> None:
        super().__init__()
        if every_seconds < 0:
            raise ConfigurationError(f"callbacks.progress.every_seconds={every_seconds} is below 0; 0 is every step.")
        self._context = context
        self._every_seconds = every_seconds
        self._live: Live | None = None
        self._activity = "starting…"
        self._step = 0
        self._validation: dict[int, float] = {}
        self._checkpoint_step: int | None = None
        self._told_at = time.monotonic()
        self._told_step = -1

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._context.log is None:
            return
        if sys.stdout.isatty():
            self._live = Live(get_renderable=self._panel, console=Console(), refresh_per_second=REFRESHES_PER_SECOND)
            self._live.start()
        else:
            plan = self._context.plan
            _tell(
                f"{self._context.folder.name}: {format_quantity(plan.horizon.tokens)} tokens in "
                f"{plan.horizon.steps} steps of {plan.batch.tokens_per_step}; compiling…"
            )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._step, self._activity = trainer.global_step, "training"
        self._look_for_checkpoint()

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._context.log is None or not is_step_end(trainer, batch_idx):
            return
        self._step = trainer.global_step
        if time.monotonic() - self._told_at >= self._every_seconds:
            self._tell_state()

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._context.log is not None and self._told_step != self._step:
            self._tell_state()
        self._stop("done" if self._step >= self._context.plan.horizon.steps else "stopped")

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._stop("failed")

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"validation": dict(self._validation)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._validation = dict(state_dict["validation"])

    def _tell_state(self) -> None:
        self._told_at, self._told_step = time.monotonic(), self._step
        self._look_for_checkpoint()
        if self._live is None:
            _tell(line(self._snapshot()))

    def _stop(self, activity: str) -> None:
        self._activity = activity
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _panel(self) -> RenderableType:
        return panel(self._snapshot())

    def _look_for_checkpoint(self) -> None:
        saved = list_checkpoints(self._context.checkpoints_folder)
        self._checkpoint_step = saved[-1].step if saved else None

    def _snapshot(self) -> Snapshot:
        """Collect the newest numbers from the run's log."""
        plan, paused_for = self._context.plan, self._context.events.paused_for
        latest = self._context.log.latest if self._context.log else lambda _: None
        if (measured := latest("validation/bits_per_byte")) is not None:
            self._validation[measured.step] = measured.metrics["validation/bits_per_byte"]
        values = {
            name: point.metrics[name]
            for name in ("train/loss", "train/lr", "speed/tokens_per_second", "speed/mfu_palm", "cost/usd")
            if (point := latest(name)) is not None
        }
        return Snapshot(
            name=self._context.folder.name,
            activity=LABELS.get(paused_for, paused_for) if paused_for else self._activity,
            step=self._step,
            num_steps=plan.horizon.steps,
            tokens_per_step=plan.batch.tokens_per_step,
            loss=values.get("train/loss"),
            lr=values.get("train/lr"),
            tokens_per_second=values.get("speed/tokens_per_second"),
            mfu=values.get("speed/mfu_palm"),
            peak_is_known=plan.peak_flops is not None,
            usd=values.get("cost/usd"),
            validation=tuple(value for _, value in sorted(self._validation.items())),
            checkpoint_step=self._checkpoint_step,
        )


def line(now: Snapshot) -> str:
    """Write a snapshot as one plain line."""
    share = min(1.0, now.step / now.num_steps)
    parts = [f"step {now.step}/{now.num_steps}", f"{_tokens(now)} tokens ({share:.0%})"]
    if now.loss is not None:
        parts.append(f"loss {now.loss:.3f}")
    if now.lr is not None:
        parts.append(f"lr {now.lr:.2e}")
    if now.tokens_per_second is not None:
        parts += [f"{format_quantity(round(now.tokens_per_second))} tokens/s", f"MFU {_mfu(now)}"]
    if now.validation:
        parts.append(f"validation {_validation(now)} bits/byte")
    if now.seconds_left is not None:
        parts.append(f"{format_quantity(now.seconds_left, 'seconds')} left")
    if now.usd is not None:
        parts.append(f"${now.usd:,.2f}")
    return " | ".join(parts)


def panel(now: Snapshot) -> RenderableType:
    """Draw a snapshot as a panel of about ten rows."""
    share = min(1.0, now.step / now.num_steps)
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", width=6)
    bar.add_row(
        ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green"),
        Text(f"{share:.1%}", style="bold"),
    )
    left = "" if now.seconds_left is None else f"{format_quantity(now.seconds_left, 'seconds')} left"
    under = Table.grid(expand=True)
    under.add_column(ratio=1)
    under.add_column(justify="right")
    under.add_row(
        Text(f"{_tokens(now)} tokens   step {now.step:,} of {now.num_steps:,}", style="dim"), Text(left, style="bold")
    )
    return Panel(
        Group(bar, under, Text(""), _numbers(now)),
        title=f"[bold]{now.name}[/]",
        title_align="left",
        subtitle=f"[dim]{now.activity}[/]",
        subtitle_align="right",
        border_style="dim cyan",
        padding=(1, 2),
        width=PANEL_COLUMNS,
    )


def _numbers(now: Snapshot) -> Table:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    for ratio, style in ((2, "dim"), (3, "bold"), (2, "dim"), (4, "bold")):
        table.add_column(ratio=ratio, style=style, no_wrap=True)
    speed = None if now.tokens_per_second is None else f"{format_quantity(round(now.tokens_per_second))} tokens/s"
    trend = f"{_validation(now)} bits/byte {sparkline(now.validation)}" if now.validation else None
    saved = None if now.checkpoint_step is None else f"step {now.checkpoint_step:,}"
    table.add_row("loss", _or_dash(now.loss, "{:.3f} nats"), "validation", trend or "-")
    table.add_row("learning rate", _or_dash(now.lr, "{:.2e}"), "speed", speed or "-")
    table.add_row("checkpoint", saved or "-", "MFU", _mfu(now))
    if now.usd is not None:
        table.add_row("cost", f"${now.usd:,.2f}", "", "")
    return table


def sparkline(values: tuple[float, ...]) -> str:
    """Draw values as bars between their smallest and largest; empty for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values[-16:])


def _tokens(now: Snapshot) -> str:
    done, total = now.step * now.tokens_per_step, now.num_steps * now.tokens_per_step
    return f"{format_quantity(done)} of {format_quantity(total)}"


def _mfu(now: Snapshot) -> str:
    if not now.peak_is_known:
        return "peak unknown"
    return "-" if now.mfu is None else f"{now.mfu:.1%}"


def _validation(now: Snapshot) -> str:
    first, last = now.validation[0], now.validation[-1]
    return f"{last:.3f}" if len(now.validation) == 1 else f"{first:.3f} → {last:.3f}"


def _or_dash(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _tell(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # a reader that leaves does not end the training
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
