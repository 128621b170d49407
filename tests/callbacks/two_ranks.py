"""One rank of two, started by the tests: train with what the arguments ask for, and print how it ended."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.communication import Communication
from lmtrain.callbacks.graceful_stop import GracefulStop
from lmtrain.callbacks.ledger import Ledger
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.validation import Validation
from lmtrain.errors import EnvironmentProblem
from lmtrain.launch.detect import outer_launcher
from lmtrain.launch.process_group import join
from lmtrain.models.documents import Documents
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.time_profiler import TimeProfiler
from tests.callbacks.tiny_run import AtStep, TinyModel, TinyRun, make_context


def main(folder: Path, dataset_folder: Path, fault: str) -> None:
    """Train six steps: `sigterm` reaches the second rank alone, `full_disk` fails two saves of the first.

    `late`: the second one computes 0.2 s longer in each step. `behind`: another process writes what the first saves.
    """
    outer = outer_launcher(os.environ)
    assert outer is not None
    join(outer)
    rank = outer.rank
    context = make_context(folder, dataset_folder, steps=6, num_ranks=2, rank=rank)
    graceful_stop = GracefulStop(every_steps=2, context=context)
    faults: list[pl.Callback] = []
    if fault == "sigterm" and rank == 1:
        faults.append(AtStep(3, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
    if fault == "full_disk":
        fail_on_first_rank()
    run = TinyRun(context=context)
    module = run.module(Late() if fault == "late" and rank == 1 else None)
    strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
    trainer = run.fit(
        StepLog(every_steps=2, context=context),
        TokenBudget(context=context),
        *faults,
        Validation(context=context),
        Checkpoint(
            every_steps=2 if fault in {"full_disk", "behind"} else None,
            background_from_bytes=0 if fault == "behind" else None,
            context=context,
        ),
        graceful_stop,
        Communication(every_steps=2, context=context),
        Ledger(every_steps=2, context=context),
        module=module,
        profiler=TimeProfiler(context.events.stopwatch),
        strategy=strategy,
        devices=2,
    )
    context.events.close()
    result = {"step": trainer.global_step, "stop_signal": graceful_stop.stop_signal, "saved": run.saved_steps()}
    (folder / f"rank{rank}.json").write_text(json.dumps(result))


class Late(TinyModel):
    """Takes its time."""

    def features(self, tokens: Tensor, documents: Documents | None = None) -> tuple[Tensor, None]:
        time.sleep(0.2)
        return super().features(tokens, documents)


def fail_on_first_rank() -> None:
    """Let the saves of steps 2 and 4 fail where they are written, while the other rank waits."""
    save = AtomicCheckpointIO.save_checkpoint

    def fail(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] < 6:
            raise EnvironmentProblem("No space left on device.")
        save(self, checkpoint, path, storage_options)

    AtomicCheckpointIO.save_checkpoint = fail


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
