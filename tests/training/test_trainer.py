from datetime import timedelta

import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
from lightning.pytorch.strategies import DDPStrategy

from lmtrain.parallel.fsdp import FullyShardedStrategy
from lmtrain.training import trainer as trainer_module
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.trainer import OwnDevice, make_trainer


@pytest.fixture
def make(tmp_path):
    """Make a Trainer on one CPU: make(strategy="auto", ...)."""
    defaults = {"strategy": "auto", "precision": "32-true", "accelerator": "cpu", "folder": tmp_path}
    return lambda **settings: make_trainer(**{**defaults, **settings})


def test_nothing_of_lightning_s_own_watches_logs_or_saves(make):
    trainer = make()
    assert trainer.loggers == []
    assert not any(isinstance(callback, (Checkpoint, ModelSummary, ProgressBar)) for callback in trainer.callbacks)


def test_no_sampler_is_swapped_in_behind_our_back(make):
    assert make(strategy=DDPStrategy())._accelerator_connector.use_distributed_sampler is False


def test_a_strategy_that_writes_its_own_checkpoints_keeps_doing_so(make):
    strategy = FullyShardedStrategy(num_ranks=1, timeout_seconds=30)
    trainer = make(strategy=strategy)
    assert trainer.strategy is strategy
    assert not isinstance(strategy._checkpoint_io, AtomicCheckpointIO)
    assert strategy._timeout == timedelta(seconds=30)


def test_ranks_that_see_one_gpu_each_take_it_and_keep_their_places(make, monkeypatch):
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "3"), ("WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(trainer_module, "_sees_own_alone", lambda devices, accelerator: devices > 1)
    trainer = make(strategy=DDPStrategy(), devices=4)
    assert isinstance(trainer.strategy.cluster_environment, OwnDevice)
    assert trainer.strategy.root_device == trainer.strategy.parallel_devices[0]
    assert (trainer.world_size, trainer.global_rank) == (4, 3)


def test_a_rank_sees_its_own_alone_where_it_is_one_of_several_and_sees_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for num_seen, alone in ((1, True), (4, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda num_seen=num_seen: num_seen)
        assert trainer_module._sees_own_alone(4, "auto") is alone
        assert not trainer_module._sees_own_alone(4, "cpu")
        assert not trainer_module._sees_own_alone(1, "auto")
