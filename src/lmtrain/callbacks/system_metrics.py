"""Each node's processors, memory, disk, network and GPUs over a run, for MLflow's page of system metrics."""

import os

import lightning.pytorch as pl
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.errors import ConfigurationError
from lmtrain.tracking.node_load import SYSTEM, LoadWatch, NodeLoad, load_log
from lmtrain.training.context import RunCallback, RunContext


class SystemMetrics(RunCallback):
    """Append a node's load to system/node<n>.jsonl every `every_seconds`, from a thread of its first rank.

    logger=mlflow sends the points on, a series of each node if there are several: system/node_1/...
    """

    def __init__(self, *, every_seconds: float = 10.0, context: RunContext | None = None) -> None:
        super().__init__(context)
        if every_seconds <= 0:
            raise ConfigurationError(f"callbacks.system_metrics.every_seconds must be above 0, got {every_seconds}.")
        self._every_seconds = every_seconds
        self._watch: LoadWatch | None = None

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        # Not the Trainer's: it is 0 of each rank that sees its own GPU alone.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        if self._watch is not None or not is_first:
            return
        node = trainer.node_rank
        self._watch = LoadWatch(
            load_log(self.run.folder, node),
            NodeLoad(self.run.folder).read,
            every_seconds=self._every_seconds,
            prefix=f"{SYSTEM}node_{node}/" if trainer.num_nodes > 1 else SYSTEM,
        )
        self._watch.start()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None


def system_metrics_facts() -> CallbackFacts:
    """Look from a thread; a measurement of steps does without it."""
    return CallbackFacts(acts_between_steps=True)
