"""Our innermost loop against Lightning's."""

import gc
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch.utils.data import DataLoader

from lmtrain.precision.policy import fp32
from lmtrain.training import step_loop
from lmtrain.training.intervals import LastStep, StepInterval
from lmtrain.training.precision_plugin import PrecisionPlugin
from lmtrain.training.process_settings import settle_objects
from lmtrain.training.step_loop import StepLoop
from lmtrain.training.trainer import make_trainer
from tests import forked
from tests.training.short_run import train, weights

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


class MovesItself(Plain):
    """Has a hook of its own where a batch is moved."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch * 2


def test_a_modules_own_way_of_moving_batches_is_heard(tmp_path, monkeypatch):
    plain = fit(tmp_path, own=True)
    monkeypatch.setitem(globals(), "Plain", MovesItself)
    ours, theirs = (fit(tmp_path, own=own) for own in (True, False))
    assert ours == theirs
    assert ours[2]["loss"] != plain[2]["loss"]


def test_make_trainer_uses_it(tmp_path):
    trainer = make_trainer(strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path)
    assert isinstance(trainer.fit_loop.epoch_loop, StepLoop)


def test_ranks_send_one_another_no_flag_of_lightning_s_with_any_callback_left_out(tmp_path, monkeypatch):
    sent, advance = [], StepLoop.advance

    def advance_again(loop, fetcher):
        loop.restarting = loop.total_batch_idx < 0  # a resumed run's first micro-batch is Lightning's own
        with monkeypatch.context() as ranks:
            ranks.setattr(torch.distributed, "is_initialized", lambda: True)
            advance(loop, fetcher)

    monkeypatch.setattr(_TrainingEpochLoop, "_broadcast_sigterm_tensor", lambda _: sent.append(1))
    monkeypatch.setattr(pl.Trainer, "world_size", 2)
    for way in (advance, advance_again):
        monkeypatch.setattr(StepLoop, "advance", way)
        fit(tmp_path, own=True)
    assert sent == []


def test_objects_are_settled_once_after_the_first_step_of_an_accelerator(tmp_path, monkeypatch):
    settled, begin = [], StepLoop.on_run_start

    def begin_on_accelerator(loop, fetcher):
        begin(loop, fetcher)
        loop._is_settled = False

    monkeypatch.setattr(step_loop, "settle_objects", lambda: settled.append(1))
    fit(tmp_path, own=True)
    assert settled == [], "on a CPU no device waits for a collection"
    monkeypatch.setattr(StepLoop, "on_run_start", begin_on_accelerator)
    fit(tmp_path, own=True)
    assert settled == [1, 1], "once an epoch here, and a run of ours has one"


@pytest.mark.parametrize("version", ["2.7.0", "2.5.9", "3.0.0"])
def test_another_version_runs_its_own_loop_says_so_in_one_line_and_trains_the_same(
    data_folder, tmp_path, monkeypatch, caplog, version
):
    ours, _ = train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, gradient_clip_norm=0.1)
    assert type(ours.trainer.fit_loop.epoch_loop) is StepLoop
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    monkeypatch.setattr(lightning, "__version__", version)
    theirs, _ = train(data_folder, tmp_path, steps=2, micro_batch_sequences=2, gradient_clip_norm=0.1)
    assert type(theirs.trainer.fit_loop.epoch_loop) is _TrainingEpochLoop
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"Lightning {version} runs its own training loop: ours was tested with 2.6.x, and saves Python in a step."
    ]
    assert torch.equal(weights(ours), weights(theirs))
    assert ours.step_metrics.drain() == theirs.step_metrics.drain()


@pytest.mark.parametrize(("every_steps", "due"), [(3, [3, 6, 7]), (1, [*range(1, 8)]), (None, [7]), (100, [7])])
def test_multiples_and_the_last_step_are_due(every_steps, due):
    interval = StepInterval(every_steps, last_step=LastStep(7), key="x.every_steps")
    assert [step for step in range(1, 8) if interval.includes(step)] == due


def test_nothing_is_due_in_the_middle_of_a_step():
    interval = StepInterval(1, last_step=LastStep(7), key="x.every_steps")
    trainer = SimpleNamespace(accumulate_grad_batches=2, global_step=3)
    assert [interval.is_due(trainer, micro_step) for micro_step in range(4)] == [False, True, False, True]


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


COUNT = """
import resource, torch
from lmtrain.training.process_settings import keep_freed_memory

KEEP
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # glibc before 2.38 wants a few bytes more than a freed block had
    torch.zeros(48 << 20, dtype=torch.uint8)
before = faults()
for _ in range(10):
    torch.zeros(48 << 20, dtype=torch.uint8)
print((faults() - before) / 10)
"""


def page_faults_in_a_fork(folder, *, keep: str) -> float:
    """Return the same of a process whose imports are there."""
    script = folder / "count.py"
    script.write_text(COUNT.replace("KEEP", keep))
    told = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = forked.run(script, [], folder=folder, environment=told)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1])


needs_glibc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is not glibc's")


@needs_glibc
def test_memory_that_a_step_frees_is_there_for_the_next(tmp_path):
    assert page_faults_in_a_fork(tmp_path, keep="assert keep_freed_memory()") < 10


def test_settled_objects_are_in_no_later_collection():
    try:
        settle_objects()
        assert gc.get_freeze_count() > 1000
        assert len(gc.get_objects()) < 1000
    finally:
        gc.unfreeze()
