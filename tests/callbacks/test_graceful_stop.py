import os
import signal

import lightning.pytorch as pl
import pytest

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.graceful_stop import GracefulStop
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.tracking.run_folder import ask_to_stop, is_asked_to_stop
from lmtrain.training.stopping import StoppedAtOnce, StoppedEarly
from tests.callbacks.tiny_run import AtStep


def receive(number):
    return lambda *_: os.kill(os.getpid(), number)


def train(run, *callbacks, **settings):
    """Train with the callbacks that stop and save; return what the signals led to."""
    graceful_stop = GracefulStop(every_steps=2, context=run.context)
    log, checkpoint = StepLog(every_steps=2, context=run.context), Checkpoint(context=run.context)
    run.fit(log, TokenBudget(context=run.context), *callbacks, checkpoint, graceful_stop, **settings)
    return graceful_stop.stop_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(make_run, number):
    before = signal.getsignal(number)
    run = make_run(steps=9)
    assert train(run, AtStep(3, receive(number))) == number
    assert run.saved_steps() == [3]
    assert run.context.last_step.goes_on_later
    assert list(run.points("train/loss")) == [1, 2, 3]
    assert signal.getsignal(number) == before


def test_a_wish_in_the_folder_ends_the_run_as_sigterm_does(make_run, monkeypatch):
    monkeypatch.setattr("lmtrain.callbacks.graceful_stop.LOOK_SECONDS", 0.0)
    run = make_run(steps=9)
    assert train(run, AtStep(3, lambda *_: ask_to_stop(run.context.folder))) == signal.SIGTERM
    assert run.saved_steps() == [3]
    assert not is_asked_to_stop(run.context.folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_the_run_at_once_without_a_checkpoint(make_run, number):
    class BeforeIt(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            receive(number)()

    before = signal.getsignal(number)
    run = make_run(steps=9)
    with pytest.raises(StoppedEarly, match="before the first step"):
        train(run, BeforeIt())
    assert run.saved_steps() == []
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_interrupts_at_once(make_run):
    run = make_run(steps=9)
    passed = []
    twice = AtStep(3, lambda _: (receive(signal.SIGINT)(), passed.append(1), receive(signal.SIGINT)()))
    with pytest.raises(StoppedAtOnce, match="SIGINT again"):
        train(run, twice)
    assert passed == [1], "the first one only asked for the step's end"
    assert run.saved_steps() == []


def test_sigterm_before_training_starts_is_not_lost(make_run):
    class TooEarly(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            receive(signal.SIGTERM)()  # this callback comes first, so that Lightning's handler is still there

    run = make_run(steps=9)
    with pytest.raises(StoppedEarly):
        train(run, TooEarly())
    assert run.saved_steps() == []
