"""A person's own LightningModule in our Trainer: Lightning's own loop runs it, as Lightning's Trainer would."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lmtrain import callbacks
from lmtrain.training.trainer import make_trainer
from tests.callbacks.test_stock_trainer import PlainModule, TwoOptimizers, loader
from tests.training.short_run import data_module, tiny_module


def stock(module: pl.LightningModule, folder: Path) -> pl.LightningModule:
    """Train a module as Lightning does."""
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, default_root_dir=folder)  # fmt: skip
    trainer.fit(module, loader(10))
    return module


@pytest.mark.parametrize("kind", [PlainModule, TwoOptimizers], ids=["one argument", "manual, two optimizers"])
def test_it_trains_as_in_a_stock_trainer(kind: type[PlainModule], tmp_path: Path) -> None:
    module = kind()
    budget = callbacks.TokenBudget(steps=10 if kind is PlainModule else 20)
    log = callbacks.StepLog(every_steps=1)
    trainer = make_trainer(
        strategy="auto", precision="32-true", accelerator="cpu", folder=tmp_path, callbacks=[log, budget]
    )
    trainer.fit(module, loader(10))
    expected = stock(kind(), tmp_path)
    assert module.losses == expected.losses  # pyright: ignore[reportAttributeAccessIssue]
    for name, value in expected.state_dict().items():
        assert torch.equal(value, module.state_dict()[name])


def test_lightnings_own_callbacks_see_our_module(tmp_path: Path, data_folder: Path) -> None:
    best = ModelCheckpoint(tmp_path, monitor="train/loss", every_n_train_steps=1, save_top_k=1)
    stopping = EarlyStopping("train/loss", patience=10**6)
    settings: dict[str, Any] = {"max_steps": 4, "logger": CSVLogger(tmp_path), "log_every_n_steps": 1}
    trainer = pl.Trainer(accelerator="cpu", callbacks=[best, stopping, LearningRateMonitor("step")],
                         enable_progress_bar=False, use_distributed_sampler=False, **settings)  # fmt: skip
    trainer.fit(tiny_module(total_steps=4), datamodule=data_module(data_folder))
    assert float(trainer.callback_metrics["train/loss"]) > 0
    assert best.best_model_score is not None
    assert Path(best.best_model_path).exists()
