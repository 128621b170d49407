"""Checkpoints during a run: which stay, what a full disk costs, how a run goes on."""

import logging
import threading

import pytest
import schedulefree
import torch

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import EnvironmentProblem
from lmtrain.storage.hashed_folder import damage
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
from lmtrain.training.checkpointing.host_copy import HostCopy
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.weight_average import WeightAverage
from tests.callbacks.tiny_run import AtStep, NotANumber


def train(run, *callbacks, **settings):
    return run.fit(*callbacks, TokenBudget(context=run.context), **settings)


def fail_at(monkeypatch, *steps):
    """Let saving fail as it does on a full disk."""
    save = AtomicCheckpointIO.save_checkpoint

    def fail(self, checkpoint, path, storage_options=None):
        if checkpoint["global_step"] in steps:
            raise EnvironmentProblem(f"{path} could not be written: No space left on device.")
        save(self, checkpoint, path, storage_options)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", fail)


def test_the_last_few_and_the_best_stay(make_run):
    run = make_run(steps=6)
    measured = {1: 5.0, 2: 3.0, 3: 4.0, 4: 4.5, 5: 4.2, 6: 4.1}
    log = [
        AtStep(step, lambda _, step=step, value=value: run.context.append(step, {"validation/bits_per_byte": value}))
        for step, value in measured.items()
    ]
    train(run, *log, Checkpoint(every_steps=1, keep_last=2, context=run.context))
    assert run.saved_steps() == [2, 5, 6]
    assert [path.name for path in run.context.checkpoints_folder.iterdir() if path.name.startswith(".")] == []


def schedule_free(model):
    return schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01)


def falling(step, total_steps, momentum):
    return momentum * (1 - step / total_steps)


# What a run has beside its weights: made anew for each run.
PARTS = {
    "plain": dict,
    "skipped steps": lambda: {"spikes": SpikeFilter(num_sigmas=0.5, window_steps=4)},
    "average": lambda: {"weight_average": WeightAverage(decay=0.9)},
    "schedule-free": lambda: {"optimizer": schedule_free},
    "momentum that falls": lambda: {
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "momentum_schedule": falling,
    },
}


@pytest.mark.parametrize("parts", PARTS)
def test_going_on_from_a_checkpoint_gives_the_same_losses_and_weights_to_the_last_bit(make_run, parts):
    """Both save step 3: leaving and entering schedule-free training rounds the weights."""
    straight, stopped = make_run(name="straight", steps=8), make_run(name="stopped", steps=8)
    modules = [straight.module(**PARTS[parts]()), stopped.module(**PARTS[parts]()), stopped.module(**PARTS[parts]())]

    def go(run, module, *callbacks, **settings):
        log, save = StepLog(every_steps=4, context=run.context), Checkpoint(every_steps=3, context=run.context)
        train(run, log, save, *callbacks, module=module, **settings)

    go(straight, modules[0])
    go(stopped, modules[1], AtStep(3, lambda trainer: setattr(trainer, "should_stop", True)))
    assert stopped.saved_steps() == [3]
    go(stopped, modules[2], checkpoint=stopped.context.checkpoints_folder / "step_00000003")
    assert stopped.points("train/loss") == straight.points("train/loss")
    assert stopped.points("train/skipped_steps") == straight.points("train/skipped_steps")
    expected = modules[0].state_dict()
    for name, tensor in modules[2].state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_checkpoint_of_schedule_free_training_holds_the_weights_that_it_evaluates(make_run):
    run = make_run(steps=3)
    module = run.module(optimizer=schedule_free)
    train(run, Checkpoint(context=run.context), module=module)
    state = torch.load(run.context.checkpoints_folder / "step_00000003" / "state.pt", weights_only=True)
    for name, parameter in module.named_parameters():  # left in evaluation by the end of training
        assert torch.equal(state["state_dict"][name], parameter), name
    assert state["optimizer_states"][0]["param_groups"][0]["train_mode"] is False


def test_the_log_holds_every_step_before_a_checkpoint_even_after_a_crash(make_run):
    run = make_run(steps=9)

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        train(
            run,
            StepLog(every_steps=100, context=run.context),
            Checkpoint(every_steps=3, context=run.context),
            AtStep(5, crash),
        )
    assert list(run.points("train/loss")) == [1, 2, 3]


def test_a_failed_save_is_reported_and_training_goes_on(make_run, monkeypatch, caplog):
    run = make_run(steps=5)
    fail_at(monkeypatch, 2, 3)
    with caplog.at_level(logging.ERROR, logger="lmtrain"):
        train(run, Checkpoint(every_steps=1, keep_last=9, context=run.context))
    assert run.saved_steps() == [1, 4, 5]
    assert len(caplog.messages) == 2
    assert "NO CHECKPOINT (failure 2; the run ends at 3)" in caplog.messages[1]


def test_the_third_failure_in_a_row_ends_the_run(make_run, monkeypatch):
    run = make_run(steps=9)
    fail_at(monkeypatch, 2, 3, 4)
    with pytest.raises(EnvironmentProblem, match=r"3 checkpoints in a row could not be saved.*No space left"):
        train(run, Checkpoint(every_steps=1, context=run.context))
    assert run.saved_steps() == [1]


def test_a_run_never_ends_well_without_its_last_checkpoint(make_run, monkeypatch):
    run = make_run(steps=2)
    fail_at(monkeypatch, 2)
    with pytest.raises(EnvironmentProblem, match="The last checkpoint of the run could not be saved"):
        train(run, Checkpoint(context=run.context))


@pytest.mark.parametrize("gradient", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_never_saved(make_run, gradient, caplog):
    run = make_run(steps=4)
    broken = NotANumber(3, gradient=gradient)
    with caplog.at_level(logging.ERROR, logger="lmtrain"), pytest.raises(EnvironmentProblem, match="not finite"):
        train(run, broken, Checkpoint(every_steps=1, keep_last=9, context=run.context))
    assert run.saved_steps() == [1, 2]
    assert "Step 3 is not saved" in caplog.messages[0]


def test_checkpoints_of_a_course_that_was_left_are_set_aside(make_run):
    run = make_run(steps=4)
    train(run, Checkpoint(every_steps=1, keep_last=9, context=run.context))
    saved = run.context.checkpoints_folder / "step_00000002"
    train(run, Checkpoint(every_steps=4, keep_last=9, context=run.context), checkpoint=saved)
    assert run.saved_steps() == [1, 2, 4]
    assert len(list(run.context.checkpoints_folder.glob("left_step_*"))) == 2


class Observed:
    """A run that saves behind its training, with a hold on the thread that writes."""

    def __init__(self, run, **settings):
        self.run = run
        settings = {"every_steps": 2, "background_from_bytes": 0, **settings}
        self.checkpoint = Checkpoint(**settings, context=run.context)

    def fit(self, *actions, **settings):
        log = StepLog(every_steps=1, context=self.run.context)
        self.run.fit(log, TokenBudget(context=self.run.context), self.checkpoint, *actions, **settings)


def same(a, b):
    """Tell whether two states are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["average", "schedule-free"])
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


@pytest.mark.slow
def test_older_checkpoints_stay_until_the_new_one_is_whole_and_a_second_save_waits(make_run):
    observed = Observed(make_run(steps=7), keep_last=1)
    saved, gate = [], threading.Event()
    write = observed.checkpoint._behind._write
    observed.checkpoint._behind._write = lambda copy: (gate.wait(60), write(copy))
    settle = AtStep(3, lambda trainer: (gate.set(), observed.checkpoint._settle(trainer), gate.clear()))
    look = AtStep(5, lambda trainer: (saved.append(observed.run.saved_steps()), gate.set()))
    observed.fit(settle, look)
    assert saved == [[2]]
    assert observed.run.saved_steps() == [7]


@pytest.mark.slow
def test_a_full_disk_is_reported_and_a_run_never_ends_well_without_its_last_checkpoint(make_run, caplog, monkeypatch):
    observed = Observed(make_run(steps=5), keep_last=9)

    def fail(copy):
        raise OSError("No space left on device")

    monkeypatch.setattr(HostCopy, "restore", fail)
    stop_at_a_step_that_failed = AtStep(4, lambda trainer: setattr(trainer, "should_stop", True))
    with caplog.at_level(logging.ERROR, logger="lmtrain"):
        observed.fit(stop_at_a_step_that_failed)
    assert observed.run.saved_steps() == [4], "written in place at the end, where the thread could not"
    assert [message.partition(" (")[0] for message in caplog.messages] == ["NO CHECKPOINT"] * 2
    assert all("No space left" in message for message in caplog.messages)


@pytest.mark.slow
def test_an_exception_waits_for_the_checkpoint_in_flight(make_run):
    observed = Observed(make_run(steps=9))

    def crash(_):
        raise KeyError("crash")

    with pytest.raises(KeyError):
        observed.fit(AtStep(2, crash))
    assert observed.run.saved_steps() == [2]
