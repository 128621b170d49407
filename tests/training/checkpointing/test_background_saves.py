"""How ranks agree, with a writer that only remembers; tests/callbacks/test_background_checkpoints.py has real ones."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lmtrain.errors import EnvironmentProblem
from lmtrain.training.checkpointing import background_saves
from lmtrain.training.checkpointing.background_saves import BackgroundSaves
from lmtrain.training.checkpointing.background_writer import Answer


class Remembering:
    """A writer that says what the test wants."""

    free_bytes = 1000

    def __init__(self, device):
        self.answer, self.calls, self.is_busy = None, [], False

    def prepare(self, num_bytes, *, num_alike):
        self.calls.append((num_bytes, num_alike))
        if num_bytes * num_alike > self.free_bytes:
            raise EnvironmentProblem("No room.")

    def start(self, job):
        self.is_busy = True

    def wait(self, *, at_most_seconds=None):
        self.calls.append(at_most_seconds)
        return self.answer

    def poll(self):
        answer, self.answer = self.answer, None
        return answer

    def hold_compute(self):
        self.calls.append("hold")

    def close(self):
        self.calls.append("close")


class Module(nn.Linear):
    """120 bytes of weights."""

    device = torch.device("cpu")

    def __init__(self):
        super().__init__(5, 5)


@pytest.fixture
def told():
    """What was told."""
    return []


@pytest.fixture
def start(monkeypatch, told):
    """Return saves of one rank, and its Trainer: start(rank=0, others_are_ready=True, is_sharded=False, ...)."""
    monkeypatch.setattr(background_saves, "BackgroundWriter", Remembering)

    def make(*, from_bytes=0, rank=0, world_size=1, others_are_ready=True, is_sharded=False):
        strategy = SimpleNamespace(
            reduce_boolean_decision=lambda decision: decision and others_are_ready,
            broadcast=lambda value: value,
            writes_own_checkpoints=is_sharded,
        )
        saves = BackgroundSaves(from_bytes=from_bytes, report=told.append)
        trainer = SimpleNamespace(
            strategy=strategy, is_global_zero=rank == 0, optimizers=[], num_devices=4, world_size=world_size
        )
        return saves, trainer

    return make


def test_one_rank_without_room_decides_for_all(start, caplog):
    saves, trainer = start(others_are_ready=False)
    assert not saves.is_possible(trainer, Module())
    caplog.clear()
    Remembering.free_bytes, before = 100, Remembering.free_bytes
    try:
        saves, trainer = start()
        assert not saves.is_possible(trainer, Module())
        assert not saves.is_possible(trainer, Module())
    finally:
        Remembering.free_bytes = before
    assert len(caplog.messages) == 1
    assert "No room. Training waits while checkpoints are written" in caplog.messages[0]


def test_a_rank_that_fails_waits_alone_and_says_what_is_lost(start, caplog):
    for world_size, seconds in ((1, None), (2, 30.0)):
        saves, trainer = start(world_size=world_size)
        assert saves.is_possible(trainer, Module())
        writer = saves._writer
        saves.has_begun(5, stall_seconds=0.0, wait_seconds=0.0)
        writer.answer = Answer("full", 0.0, 0) if world_size == 1 else None
        saves.finish_alone(trainer)
        assert writer.calls[1:] == [seconds, "close"]
        saves.finish_alone(trainer)
    assert caplog.messages == ["NO CHECKPOINT of step 5: full", "NO CHECKPOINT of step 5: it took too long"]
