"""A sign of life of each rank: a hang is reported with the late rank and its stack, a death with its last activity."""

from typing import Any, Final

import lightning.pytorch as pl
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.accounting.options.ranges import require_number
from lmtrain.tracking.hangs import BeatFile, HangWatch
from lmtrain.tracking.stopwatch import Kind
from lmtrain.training.context import RunCallback, RunContext

ACTIVITY_OF_KIND: Final[dict[Kind, str]] = {
    "data_wait": "reading data",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
}
PAUSES: Final = frozenset({"checkpoint", "evaluation"})


class Heartbeat(RunCallback):
    """Keep each rank's activity in events/rank<r>.beat, and its process's sign of life every `every_seconds`.

    After `report_after_seconds` without progress of any rank (None: never), the ranks behind the others are named with
    their stacks, on the first rank's stderr and in events/hang_<time>.txt; after ten times as long in set-up, a
    process's first step, an evaluation and a checkpoint. It belongs first in the list.
    """

    def __init__(
        self,
        *,
        every_seconds: float = 5.0,
        report_after_seconds: float | None = None,
        context: RunContext | None = None,
    ) -> None:
        super().__init__(context)
        require_number("callbacks.heartbeat.every_seconds", every_seconds, above=0, usual="5")
        least = 2 * every_seconds  # two beats
        require_number("callbacks.heartbeat.report_after_seconds", report_after_seconds, at_least=least, usual="null")
        self._every_seconds, self._report_after = every_seconds, report_after_seconds
        self._file: BeatFile | None = None
        self._watch: HangWatch | None = None
        self._step = 0

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._file is not None:
            return
        folder = self.run.folder
        self._file = BeatFile(folder, trainer.global_rank)
        self.run.events.stopwatch.on_change = self._follow
        self._watch = HangWatch(
            self._file,
            folder=folder,
            num_ranks=trainer.world_size,
            every_seconds=self._every_seconds,
            report_after_seconds=self._report_after,
        )
        self._watch.start()

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step + 1
        if self._file is not None:
            self._file.activity("forward", step=self._step, begins_micro_step=True)

    @override
    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        self._act("backward")

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self._act("optimizer")

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._act("between steps")

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self._watch is not None:
            self.run.events.stopwatch.on_change = None
            self._watch.close()
        if self._file is not None:
            self._file.close()
        self._file = self._watch = None

    def _follow(self, kind: Kind) -> None:
        if kind == "compile":  # part of the first step or of an evaluation, with its long allowance
            return
        is_pausing = self._file is not None and self._file.beat.activity in PAUSES
        if name := ACTIVITY_OF_KIND.get(kind, "between steps" if is_pausing else None):
            self._act(name)

    def _act(self, name: str) -> None:
        if self._file is not None:
            self._file.activity(name, step=self._step)


HEARTBEAT_FACTS: Final = CallbackFacts(acts_between_steps=True)
