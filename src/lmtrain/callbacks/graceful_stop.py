"""Let a signal end a run after the step it is in, with a checkpoint, on all ranks alike.

Lightning ends with exit code 0 and no checkpoint on SIGTERM, deadlocks if only another rank than the first gets it
(a collective inside the handler), and saves inside the handler under SLURM (lightning 2.6.6).
"""

import logging
import signal
import time
from contextlib import ExitStack
from types import FrameType
from typing import Final

import lightning.pytorch as pl
import torch
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.tracking.run_folder import forget_stop, is_asked_to_stop
from lmtrain.training.context import RunCallback, RunContext
from lmtrain.training.intervals import StepInterval
from lmtrain.training.stopping import StoppedAtOnce, StoppedEarly, handling

LOOK_SECONDS: Final = 1.0
_LOG = logging.getLogger(__name__)


class GracefulStop(RunCallback):
    """Stop at a step boundary after SIGTERM, SIGINT or SIGUSR1; the checkpoint callback then saves the step.

    The request of `lmtrain stop` in the run's folder, which the first rank looks for once a second, counts as SIGTERM.

    Before the first step (it compiles, it validates) there is nothing to save: StoppedEarly ends the run at once. From
    then on handlers only set a flag. One rank looks at it after each step, several agree on it every `every_steps`
    steps. A second SIGINT raises StoppedAtOnce, further ones change nothing. After training, `stop_signal` is the
    signal that ended it before its budget (None: no signal), for the exit code: 143, 130, 85. It belongs last in the
    list: handlers stay until all is saved.
    """

    def __init__(self, *, every_steps: int = 10, context: RunContext | None = None) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.graceful_stop.every_steps"))
        self._received = 0
        self._looked_at = 0.0
        self._has_stepped = False
        self._handlers = ExitStack()
        self.stop_signal: int | None = None
        self.is_through = False  # all is saved, and a signal comes too late to stop anything

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._received = _replace_own_signals(trainer)
        self._handlers.enter_context(handling(self._remember))
        if self._received:
            raise StoppedEarly(self._received)

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._has_stepped = True
        self._look_for_request(trainer)
        if trainer.world_size == 1:
            received = self._received
        else:
            received = self._agree(trainer) if self.is_due(trainer.global_step) else 0
        if received and trainer.global_step < self.run.last_step.steps:
            self._stop(trainer, received)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.is_through = True
        self._handlers.close()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._handlers.close()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self._has_stepped:
            raise StoppedEarly(number)
        is_second = number == self._received == signal.SIGINT
        self._received = number
        if is_second:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise StoppedAtOnce(number)

    def _look_for_request(self, trainer: pl.Trainer) -> None:
        now = time.monotonic()
        if trainer.is_global_zero and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            if is_asked_to_stop(self.run.folder):
                forget_stop(self.run.folder)
                self._received = signal.SIGTERM

    def _agree(self, trainer: pl.Trainer) -> int:
        """Return the same signal number on every rank, 0 if none has received any."""
        flag = torch.tensor(self._received, device=trainer.strategy.root_device)
        return int(trainer.strategy.reduce(flag, reduce_op="max"))

    def _stop(self, trainer: pl.Trainer, received: int) -> None:
        self.stop_signal = received
        trainer.should_stop = self.run.last_step.goes_on_later = True
        self.run.events.mark("stop_signal", signal=received, step=trainer.global_step)
        if trainer.is_global_zero:
            name = signal.Signals(received).name
            rest = "" if self.context is None else "; the same command goes on from it"
            _LOG.warning("%s: stopping after step %d%s.", name, trainer.global_step, rest)


def _replace_own_signals(trainer: pl.Trainer) -> int:
    """Switch Lightning's SIGTERM handling off, and return SIGTERM if one came while it was on, else 0.

    Lightning broadcasts its flag and reads it on the host for every micro-batch, and raises at the end (2.6.6).
    """
    epoch_loop, connector = trainer.fit_loop.epoch_loop, trainer._signal_connector  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    epoch_loop._broadcast_sigterm_tensor = lambda: None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    received, connector.received_sigterm = connector.received_sigterm, False
    return signal.SIGTERM if received else 0


GRACEFUL_STOP_FACTS: Final = CallbackFacts(acts_between_steps=True, stops_on_signals=True)
