"""Score a run's checkpoints in another process while training goes on."""

import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_count
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import python_command
from lmtrain.tracking.held_checkpoints import FOLDER, held, hold, release, step_of, waiting
from lmtrain.tracking.machine import start_process_aside
from lmtrain.training.checkpointing.checkpoints import list_checkpoints
from lmtrain.training.context import OnlyInRun, RunContext
from lmtrain.training.intervals import StepInterval

_LOG = logging.getLogger(__name__)
LOG: Final = "evaluate_aside.log"
MODULE: Final = "lmtrain.cli.commands.evaluate_held"


class EvaluateAside(OnlyInRun):
    """Hold each new checkpoint until `lmtrain evaluate` has scored it, and see that a process does; only in a run.

    The scores join the run's curves at the checkpoint's step. The process has the lowest priority; its words are in
    the run's evaluate_aside.log. At most `most_waiting` checkpoints wait, the oldest beyond is given up. Those held
    at a stop are scored by the next attempt; after the run's end, or its kill, the process goes on by itself. It
    belongs behind `checkpoint` in the list.
    """

    def __init__(
        self,
        *,
        words: TypedAlone[Sequence[str]] = (),
        device: str = "cpu",
        most_waiting: int = 2,
        every_steps: int = 10,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context, step_interval=StepInterval(every_steps, key="callbacks.evaluate_aside.every_steps"))
        require_count("callbacks.evaluate_aside.most_waiting", most_waiting)
        self._most_waiting = most_waiting
        self._words, self._device = words, device
        self._newest_step = 0
        self._process: subprocess.Popen[bytes] | None = None

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Let checkpoints of an abandoned course go, and hold the one resumed from where no scores of it are known."""
        if not self.context.is_main_process:
            return
        (self.context.folder / FOLDER).mkdir(exist_ok=True)
        for place in held(self.context.folder):
            if step_of(place) > trainer.global_step:
                release(place)
        known = [*(self.context.folder / "evaluation").glob("step_*.json")]
        scored = max((int(path.stem.removeprefix("step_")) for path in known), default=0)
        waits = max(map(step_of, held(self.context.folder)), default=0)
        self._newest_step = max(min(scored, trainer.global_step), waits)
        self._look()

    @override
    def on_due_step(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.context.is_main_process:
            self._look()

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.context.is_main_process:
            self._look(is_last=True)

    def _look(self, *, is_last: bool = False) -> None:
        """Hold new checkpoints, give up the oldest beyond the queue, and start the process where none is at it.

        At the last look a second one is started too: the first may be past its own look already, or meets it.
        """
        folder = self.context.folder
        for facts in list_checkpoints(self.context.checkpoints_folder):
            if facts.step > self._newest_step:
                self._newest_step = facts.step
                try:
                    hold(folder, facts.path)
                except OSError as problem:
                    _LOG.warning("Step %d is not scored aside: %s.", facts.step, problem)
        for place in waiting(folder)[: -self._most_waiting]:
            if release(place):
                _LOG.warning("Step %d is not scored aside: the scoring is slower than the saving.", step_of(place))
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            if code:
                _LOG.warning("A checkpoint could not be scored aside; %s says why.", folder / LOG)
        if (self._process is None or is_last) and waiting(folder):
            self._start(folder)

    def _start(self, folder: Path) -> None:
        own = ["--data", str(self.context.dataset.folder.absolute()), "--split", "validation"]
        words = [*(self._words or own), "--device", self._device]
        command = python_command("-m", MODULE, str(folder), *words)
        try:
            self._process = start_process_aside(command, log=folder / LOG)
        except OSError as problem:  # no process or no file for it: the run goes on without
            _LOG.warning("No process scores checkpoints: %s.", problem)


EVALUATE_ASIDE_FACTS: Final = CallbackFacts(acts_between_steps=True)
