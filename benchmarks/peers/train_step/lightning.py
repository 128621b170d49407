"""Plain Lightning: our model in a LightningModule of ten lines and a Trainer with all that costs time switched off."""

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.harness.train_step.task import CLIP_NORM, Task
from benchmarks.harness.train_step.turns import Turns
from benchmarks.peers.train_step.bare import batches
from benchmarks.peers.train_step.ours import make_job, make_run
from benchmarks.peers.train_step.trainer import EndOfStep
from lmtrain.training.module import materialize

GIVEN = "our model; no logger, bar, checkpoint or summary, no self.log; gradient_clip_val 1.0, fused AdamW"


class Batches(IterableDataset[torch.Tensor]):
    """Our batches for a DataLoader."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Any]:
        """Yield ids [B, T + 1]."""
        return iter(batches(self._run))


class Plain(pl.LightningModule):
    """What a person would write."""

    def __init__(self, model: Any, loss: Any, optimizer: Any) -> None:
        super().__init__()
        self.model, self.loss, self.optimizer = model, loss, optimizer

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        """Return the mean loss."""
        del batch_idx
        tokens = batch.long()
        total = self.model(tokens[:, :-1], tokens[:, 1:], self.loss)
        return total.objective / total.num_tokens

    def configure_optimizers(self) -> Any:
        """Build fused AdamW."""
        return self.optimizer(self.model)


def run(task: Task, turns: Turns) -> None:
    """Train."""
    built = make_run(make_job(task, ["logger=none"], name="lightning"))
    ours = built.module
    model = materialize(ours.language_model, device=torch.device(task.device), seed=0)
    turns.say(num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    module = Plain(ours._transforms.compile(model), ours.loss, ours._optimizer)  # noqa: SLF001
    trainer = pl.Trainer(
        accelerator="cpu" if task.device == "cpu" else "gpu",
        devices=1,
        precision="bf16-mixed" if task.precision == "bf16_mixed" else "32-true",
        max_steps=task.max_steps,
        gradient_clip_val=CLIP_NORM,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        default_root_dir=task.scratch,
        callbacks=[EndOfStep(turns)],
    )
    trainer.fit(module, DataLoader(Batches(built), batch_size=None))
