import logging

import pytest
import schedulefree
import torch

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.step_log import StepLog
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.errors import EnvironmentProblem
from lmtrain.training.checkpointing.checkpoint_io import AtomicCheckpointIO
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


def test_a_score_measured_at_another_step_makes_no_checkpoint_the_best(make_run):
    run = make_run(steps=4)
    measure = AtStep(1, lambda _: run.context.append(1, {"validation/bits_per_byte": 1.0}))
    train(run, measure, Checkpoint(every_steps=2, keep_last=1, context=run.context))
    assert run.saved_steps() == [4]


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


def test_the_parts_that_skip_steps_do_skip_some(make_run):
    run = make_run(steps=8)
    module = run.module(**PARTS["skipped steps"]())
    train(run, StepLog(every_steps=4, context=run.context), module=module)
    counts = run.points("train/skipped_steps")
    assert [*counts] == [*range(1, 9)]
    assert 0 < counts[8] == int(module.spikes.num_skipped) < 8


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


def test_older_checkpoints_stay_while_the_new_one_is_not_whole(make_run, monkeypatch, caplog):
    run = make_run(steps=4)
    monkeypatch.setattr(
        "lmtrain.training.checkpointing.checkpoints.damage",
        lambda path: "state.pt is missing" if "03" in path.name else None,
    )
    stop = AtStep(3, lambda trainer: setattr(trainer, "should_stop", True))
    with (
        caplog.at_level(logging.ERROR, logger="lmtrain"),
        pytest.raises(EnvironmentProblem, match=r"state\.pt is missing"),
    ):
        train(run, Checkpoint(every_steps=1, keep_last=1, context=run.context), stop)
    assert run.saved_steps() == [2, 3]


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
