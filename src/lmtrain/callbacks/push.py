"""Send a run's newest checkpoint to the Hub now and then, from a separate process that the run never waits for."""

import subprocess
import time
from pathlib import Path
from typing import Final

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.ranges import require_number
from lmtrain.accounting.options.typed_alone import TypedAlone
from lmtrain.child_process import python_command
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.machine import start_process_aside
from lmtrain.training.context import OnlyInRun, RunContext

LOG: Final = "push.log"
# Lowest priority, and no accelerator: the process takes nothing from the run but spare time of the disk and network.
LMTRAIN: Final = ("-c", "import os; os.nice(19); from lmtrain.cli.main import main; raise SystemExit(main())")
ITS_ENVIRONMENT: Final = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Push(OnlyInRun):
    """Start `lmtrain push` every `every_minutes` for a new checkpoint, and once more at the end; only in a run.

    Its problems are in the run's push.log and nowhere else. One still under way is left alone; the last one waits for
    it. Raises: ConfigurationError for no repository, or a time not above 0.
    """

    def __init__(
        self,
        *,
        repository: TypedAlone[str],
        every_minutes: float = 30.0,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context)
        if repository.count("/") != 1 or not all(repository.split("/")):
            raise ConfigurationError(f"callbacks.push.repository: must be OWNER/NAME of the Hub, got {repository}.")
        require_number("callbacks.push.every_minutes", every_minutes, above=0, usual="30")
        self._repository = repository
        self._every_seconds = every_minutes * 60
        self._last_time = time.monotonic()
        self._last_checkpoint: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @override
    def on_step_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        is_due = time.monotonic() - self._last_time >= self._every_seconds
        is_free = self._process is None or self._process.poll() is not None
        if self.context.is_main_process and is_due and is_free:
            self._start()

    @override
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.context.is_main_process:
            self._start()

    def _start(self) -> None:
        """Start a push of a checkpoint not sent yet, and go on at once."""
        newest = max(self.context.checkpoints_folder.glob("step_*"), default=None)
        if newest is None or newest == self._last_checkpoint:
            return
        self._last_time, self._last_checkpoint = time.monotonic(), newest
        folder = self.context.folder
        try:
            command = python_command(*LMTRAIN, "push", str(folder), self._repository)
            self._process = start_process_aside(command, log=folder / LOG, environment=ITS_ENVIRONMENT)
        except OSError as problem:  # no process or no file for it: the run goes on without
            self.context.events.mark("push_failed", problem=type(problem).__name__)
