"""Each node's processors, memory, disk, network and GPUs over a run, for MLflow's page of system metrics."""

import logging
import os
import threading

import lightning.pytorch as pl
import psutil
from typing_extensions import override

from lmtrain.accounting.options.parts import CallbackFacts
from lmtrain.errors import ConfigurationError, EnvironmentProblem
from lmtrain.tracking.node_load import SYSTEM, NodeLoad, load_log
from lmtrain.tracking.run_log import Point, RunLog
from lmtrain.tracking.stopwatch import unix_seconds
from lmtrain.training.context import RunCallback, RunContext

_LOG = logging.getLogger(__name__)


class SystemMetrics(RunCallback):
    """Append a node's load to system/node<n>.jsonl every `every_seconds`, from a thread of its first rank.

    logger=mlflow sends the points on, a series of each node if there are several: system/node_1/...
    """

    def __init__(self, *, every_seconds: float = 10.0, context: RunContext | None = None) -> None:
        super().__init__(context)
        if every_seconds <= 0:
            raise ConfigurationError(f"callbacks.system_metrics.every_seconds must be above 0, got {every_seconds}.")
        self._every_seconds = every_seconds
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        # Not the Trainer's: it is 0 of each rank that sees its own GPU alone.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        if self._thread is None and is_first:
            node = trainer.node_rank
            prefix = f"{SYSTEM}node_{node}/" if trainer.num_nodes > 1 else SYSTEM
            log = load_log(self.run.folder, node)
            self._is_over.clear()
            self._thread = threading.Thread(target=self._watch, args=(log, prefix), name="node-load", daemon=True)
            self._thread.start()

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._close()

    def _close(self) -> None:
        """Let the thread look once more, and wait for it."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _watch(self, log: RunLog, prefix: str) -> None:
        try:
            load, last, is_over = NodeLoad(self.run.folder), log.last_step(), False
            number = 0 if last is None else last + 1
            while not is_over:
                is_over = self._is_over.wait(self._every_seconds)
                log.extend([Point(unix_seconds(), number, 0, {f"{prefix}{k}": v for k, v in load.read().items()})])
                number += 1
            log.close()
        except (OSError, psutil.Error, EnvironmentProblem) as problem:  # training goes on without
            _LOG.warning("The node's load is not looked at any more: %s", problem)


def system_metrics_facts() -> CallbackFacts:
    """Look from a thread; a measurement of steps does without it."""
    return CallbackFacts(acts_between_steps=True)
