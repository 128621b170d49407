"""Our innermost loop against Lightning's."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch.utils.data import DataLoader

from lmtrain.precision.policy import fp32
from lmtrain.training.intervals import LastStep, StepInterval
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.trainer import make_trainer

NUM_BATCHES, WINDOW = 7, 3
HOOKS = [name for name in dir(pl.Callback) if name.startswith("on_")]


class Recorder(pl.Callback):
    """Notes every hook with the counters at that moment."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        for name in HOOKS:
            setattr(self, name, self._note(name))

    def _note(self, name: str) -> Any:
        def hook(trainer: pl.Trainer, pl_module: pl.LightningModule, *arguments: Any, **named: Any) -> None:
            del named
            loop = trainer.fit_loop.epoch_loop
            plain = [one for one in arguments if isinstance(one, int)]
            outputs = [float(one["loss"]) for one in arguments if isinstance(one, dict) and "loss" in one]
            self.seen.append((name, trainer.global_step, loop.batch_idx, loop.state_dict(), plain, outputs))

        return hook


class Plain(pl.LightningModule):
    """A linear layer that logs, and asks for our loop."""

    runs_in_step_loop = True

    def __init__(self, *, validates: bool, stop_at: int | None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(self.layer.weight, 0.5)
        self.stop_at = stop_at
        self.notes: list[Any] = []
        if validates:
            self.validation_step = lambda batch, batch_idx: self.log("held_out", self._loss(batch))

    def _loss(self, batch: Any) -> torch.Tensor:
        return (self.layer(batch) ** 2).mean()

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("loss", loss, on_step=True)
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == self.stop_at else None

    def on_before_zero_grad(self, optimizer):
        self.notes.append(("zero", self.layer.weight.grad is None))

    def on_after_backward(self):
        self.notes.append(("backward", self._gradient().sum().item()))

    def on_before_optimizer_step(self, optimizer):
        self.log("norm", self._gradient().norm())

    def _gradient(self) -> torch.Tensor:
        assert self.layer.weight.grad is not None
        return self.layer.weight.grad

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}]


def fit(folder: Path, *, own: bool, resume: bool = False, validates: bool = False, stop_at: int | None = None) -> Any:
    recorder, module = Recorder(), Plain(validates=validates, stop_at=stop_at)
    trainer = make_trainer(
        strategy="auto",
        precision=PrecisionPlugin(fp32(), device_type="cpu") if own else "32-true",
        accelerator="cpu",
        accumulation_micro_steps=WINDOW,
        folder=folder,
        callbacks=[pl.Callback(), recorder],
    )
    trainer.fit_loop.max_epochs = 3 if resume else 2
    if not own:
        trainer.fit_loop.epoch_loop = _TrainingEpochLoop(trainer)
    loader = DataLoader(torch.arange(NUM_BATCHES * 6.0).reshape(-1, 3) / 10, batch_size=2)
    saved = folder / f"{own}.ckpt"
    trainer.fit(module, loader, loader if validates else None, ckpt_path=saved if resume else None)
    trainer.save_checkpoint(saved)
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return recorder.seen, module.notes, metrics, module.layer.weight.tolist()


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize("stop_at", [None, 4])
def test_hooks_counters_metrics_and_weights_are_lightnings(tmp_path, validates, stop_at):
    ours, theirs = (fit(tmp_path, own=own, validates=validates, stop_at=stop_at) for own in (True, False))
    assert [row[0] for row in ours[0]] == [row[0] for row in theirs[0]]
    assert ours == theirs
    assert ours[2].keys() >= {"loss", "norm"}


def test_a_resumed_run_goes_on_as_lightnings_does(tmp_path):
    for own in (True, False):
        fit(tmp_path, own=own)
    ours, theirs = (fit(tmp_path, own=own, resume=True) for own in (True, False))
    assert len(ours[0]) > NUM_BATCHES
    assert ours == theirs


@pytest.mark.parametrize(("num_times", "due"), [(1, [10]), (2, [5, 10]), (4, [3, 5, 8, 10]), (10, [*range(1, 11)])])
def test_so_many_times_are_spread_evenly(num_times, due):
    interval = StepInterval(None, num_times=num_times, last_step=LastStep(10), key="x.every_steps")
    assert [step for step in range(1, 11) if interval.includes(step)] == due


def test_the_last_step_may_move():
    last_step = LastStep(100)
    interval = StepInterval(None, num_times=2, last_step=last_step, key="x.every_steps")
    assert not interval.includes(10)
    last_step.steps = 20
    assert [step for step in range(1, 21) if interval.includes(step)] == [10, 20]
