"""Checkpoints that another process writes while training goes on: what may go wrong there, and what must not show."""

import logging
import os
import resource
import signal
from typing import Any

import pytest
import schedulefree
import torch

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.weight_average import WeightAverage
from tests.callbacks.tiny_run import AtStep

pytestmark = pytest.mark.slow  # each starts a process that imports torch
BYTES_BEFORE_THE_FAULT = 1 << 10


class Observed:
    """A run that saves behind its training, with a hold on the process that writes."""

    def __init__(self, run, **settings):
        self.run = run
        settings = {"every_steps": 2, "background_from_bytes": 0, **settings}
        self.checkpoint = Checkpoint(**settings, context=run.context)

    def fit(self, *actions, **settings):
        log = StepLog(every_steps=1, context=self.run.context)
        self.run.fit(log, TokenBudget(context=self.run.context), self.checkpoint, *actions, **settings)

    def send(self, number):
        """Return an action that sends the writing process a signal."""
        return lambda _: os.kill(self.writer._writer.process.pid, number)

    @property
    def writer(self) -> Any:
        return self.checkpoint._behind._writer


def same(a, b):
    """Tell whether two states are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def schedule_free(model):
    return schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)


PARTS = {
    "average": lambda: {"weight_average": WeightAverage(decay=0.9)},
    "two points": lambda: {"optimizer": schedule_free},
}


@pytest.mark.parametrize("parts", PARTS)
def test_what_is_written_behind_is_what_would_have_been_written_in_place(make_run, parts):
    """And training goes on to the same weights from it: both are a property of equal states."""
    states = []
    for name, from_bytes in (("place", None), ("behind", 0)):
        observed = Observed(make_run(name=name, steps=5), keep_last=9, background_from_bytes=from_bytes)
        module = observed.run.module(**PARTS[parts]())
        observed.fit(module=module)
        assert observed.run.saved_steps() == [2, 4, 5]
        folders = sorted(observed.run.context.checkpoints_folder.iterdir())
        assert [damage(folder) for folder in folders] == [None] * 3
        states.append([AtomicCheckpointIO().load_checkpoint(folder) for folder in folders] + [module.state_dict()])
    assert all(same(*pair) for pair in zip(*states, strict=True))


def test_older_checkpoints_stay_until_the_new_one_is_whole_and_a_second_save_waits(make_run):
    observed = Observed(make_run(steps=7), keep_last=1)
    saved = []
    go_on = signal.SIGCONT
    look = [
        AtStep(3, lambda trainer: (observed.checkpoint._settle(trainer), observed.send(signal.SIGSTOP)(trainer))),
        AtStep(5, lambda trainer: (saved.append(observed.run.saved_steps()), observed.send(go_on)(trainer))),
    ]
    observed.fit(*look)
    assert saved == [[2]]
    assert observed.run.saved_steps() == [7]


@pytest.mark.faults
def test_a_writer_that_is_killed_is_told_of_at_the_next_save_and_replaced(make_run, caplog):
    observed = Observed(make_run(steps=5), keep_last=9)
    stop, kill = AtStep(1, observed.send(signal.SIGSTOP)), AtStep(3, observed.send(signal.SIGKILL))
    with caplog.at_level(logging.ERROR, logger="lmtrain"):
        observed.fit(stop, kill)
    assert observed.run.saved_steps() == [4, 5]
    assert "NO CHECKPOINT (failure 1; the run ends at 3): Step 2 is not saved" in caplog.messages[0]
    assert "the process that writes checkpoints ended (signal 9)" in caplog.messages[0]
    assert len(caplog.messages) == 1


def test_a_full_disk_is_told_of_and_a_run_never_ends_well_without_its_last_checkpoint(make_run, caplog):
    observed = Observed(make_run(steps=5), keep_last=9)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    started = observed.checkpoint._behind.prepare

    def prepare(trainer, module):
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_BEFORE_THE_FAULT, limits[1]))
        try:
            started(trainer, module)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    observed.checkpoint._behind.prepare = prepare
    stop_at_a_step_that_failed = AtStep(4, lambda trainer: setattr(trainer, "should_stop", True))
    with caplog.at_level(logging.ERROR, logger="lmtrain"):
        observed.fit(stop_at_a_step_that_failed)
    assert observed.run.saved_steps() == [4], "written in place at the end, where the other process could not"
    assert [message.partition(" (")[0] for message in caplog.messages] == ["NO CHECKPOINT"] * 2
    assert all("could not be written" in message for message in caplog.messages)


def test_an_exception_waits_for_the_checkpoint_in_flight(make_run):
    observed = Observed(make_run(steps=9))

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        observed.fit(AtStep(2, crash))
    assert observed.run.saved_steps() == [2]
    assert observed.writer is None


def test_a_host_without_room_for_a_copy_writes_in_place_and_says_so(make_run, monkeypatch, caplog):
    monkeypatch.setattr("lmtrain.training.checkpointing.staging.free_host_bytes", lambda: 1000)
    observed = Observed(make_run(steps=5), keep_last=9)
    with caplog.at_level(logging.WARNING, logger="lmtrain"):
        observed.fit()
    assert observed.run.saved_steps() == [2, 4, 5]
    assert len(caplog.messages) == 1
    assert "but 1.0KB of host memory is free. Training waits while checkpoints are written" in caplog.messages[0]


def test_what_a_killed_run_left_aside_is_cleared_and_what_was_only_moved_is_put_back(make_run):
    run = make_run(steps=4)
    folder = run.context.checkpoints_folder
    for name in (".step_00000009.tmp", ".step_00000007.deleting"):
        (folder / name).mkdir(parents=True)
    Observed(run).fit(AtStep(1, lambda _: None))
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000002", "step_00000004"]
