"""One of two ranks that train every combination of a strategy in turn, started by test_step_guards_ranks.py.

Arguments: strategy (ddp, fsdp), folder, and the combinations as JSON. What was counted goes to rank<r>.json.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.distributed as dist

from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.run.compose.compose import compose_config
from lmtrain.run.execution.build import build_run
from lmtrain.run.execution.run import quiet_libraries
from lmtrain.run.run_config import read_config
from lmtrain.run.stored_runs.job import Job
from lmtrain.tracking.mlflow import tracking as mlflow_tracking
from lmtrain.tracking.run_folder import RunFolder
from lmtrain.tracking.run_log import RunLog
from lmtrain.tracking.status import Status
from tests import tiny
from tests.callbacks.test_default import CountedSteps
from tests.leave import leave

LOG_EVERY, STEPS, NUM_RANKS = 3, 5, 2
SETTINGS = [
    *("budget=steps", f"budget.steps={STEPS}", f"run.log_every_steps={LOG_EVERY}", "batch.micro_batch_sequences=2"),
    *("trainer.accelerator=cpu", f"trainer.devices={NUM_RANKS}", "callbacks.checkpoint.every_seconds=null"),
    *("callbacks.validation.num_passes=null", "callbacks.validation.max_tokens=200"),
    "callbacks.text_samples.num_new_tokens=1",
]


class Reductions(pl.Callback):
    """Counts by step the sums of gradients over the ranks: DDP's buckets, or FSDP2's reduce-scatters."""

    def __init__(self) -> None:
        super().__init__()
        self.by_step: dict[int, int] = {}
        self._num = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if hasattr(trainer.strategy.model, "register_comm_hook"):
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            replicas: Any = trainer.strategy.model
            replicas.register_comm_hook(None, self._counted(allreduce_hook))
        name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
        self._name, self._original = name, getattr(dist, name)
        setattr(dist, name, self._counted(self._original))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.by_step[trainer.global_step], self._num = self._num, 0

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        setattr(dist, self._name, self._original)

    def _counted(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reduce)  # DDP reads the signature of its hook
        def counted(*arguments: Any, **settings: Any) -> Any:
            self._num += 1
            return reduce(*arguments, **settings)

        return counted


def train(words: list[str], folder: Path, *, rank: int, name: str) -> dict[str, dict[int, int]]:
    """Train a tiny run with every default callback and tell what each of its steps did."""
    given = {word.partition("=")[0] for word in words}
    kept = [word for word in tiny.TINY if word.partition("=")[0] not in {*given, "run.log_every_steps"}]
    overrides = [*kept, *SETTINGS, *words, f"data.folder.root={folder / 'data'}"]
    job = Job(
        config=read_config(compose_config(overrides)).checked(),
        overrides=overrides,
        name=name,
        root=str(folder / "runs"),
    )
    if rank == 0:
        RunFolder(job.folder, root=Path(job.root)).create()
    dist.barrier()
    run = build_run(job, rank=rank, log=RunLog(job.folder) if rank == 0 else None)
    patches, reductions = pytest.MonkeyPatch(), Reductions()
    counted = CountedSteps(patches)
    run.trainer.callbacks += [reductions, counted]
    # MLflow's process reads the run's files and needs 20 s to start and end: a rank's own part is looked at here.
    patches.setattr(mlflow_tracking, "_start_process", lambda *_, **__: subprocess.Popen(["true"]))
    logger = job.config.logger.build()
    handle = logger.start(RunFolder(job.folder, root=Path(job.root))) if rank == 0 else None
    run.trainer.fit(run.module, datamodule=run.datamodule)
    if handle:
        handle.finish(Status(status="FINISHED", exit_code=0, step=STEPS, tokens=0))
    patches.undo()
    return {"reads": counted.by_step, "reductions": reductions.by_step}


def main(strategy: str, folder: Path, combinations: list[list[str]]) -> None:
    """Train every combination in one job."""
    torch.set_num_threads(1)
    os.chdir(folder)
    quiet_libraries()
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer, timeout_seconds=60)
    found = {}
    for number, words in enumerate(combinations):
        key = " ".join(words)
        found[key] = train([f"strategy={strategy}", *words], folder, rank=outer.rank, name=f"run{number}")
    (folder / f"rank{outer.rank}.json").write_text(json.dumps(found))
    leave()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
