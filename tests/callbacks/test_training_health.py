import pytest
import torch

from lmtrain.callbacks.checkpoint import Checkpoint
from lmtrain.callbacks.token_budget import TokenBudget
from lmtrain.callbacks.training_health import TrainingHealth
from lmtrain.errors import DataError, EnvironmentProblem
from lmtrain.losses.cross_entropy import CrossEntropy
from lmtrain.training.spikes import SpikeFilter
from lmtrain.training.step_metrics import StepRecord
from tests.callbacks.tiny_run import NotANumber


def train(run, *callbacks, **settings):
    health = TrainingHealth(every_steps=4, context=run.context)
    budget, checkpoint = TokenBudget(context=run.context), Checkpoint(every_steps=2, context=run.context)
    return run.fit(*callbacks, health, budget, checkpoint, module=run.module(**settings))


@pytest.mark.parametrize(("gradient", "norm"), [(float("nan"), "nan"), (float("inf"), "inf")])
def test_a_step_that_is_not_finite_stops_the_run_with_its_batch_named(make_run, gradient, norm):
    run = make_run(steps=9)
    with pytest.raises(EnvironmentProblem) as stopped:
        train(run, NotANumber(3, gradient=gradient))
    message = str(stopped.value)
    assert "Step 3 has loss" in message
    assert f"gradient norm {norm}" in message
    assert "windows 8 to 11 of the run's order" in message  # 4 sequences a step, from 0
    assert f"The last good checkpoint is {run.context.checkpoints_folder / 'step_00000002'}" in message
    assert stopped.value.exit_code == 3
    assert run.saved_steps() == [2]


def test_a_healthy_run_is_left_alone(make_run):
    run = make_run(steps=9)
    assert train(run).global_step == 9


def test_a_step_that_was_skipped_is_no_harm_and_is_saved(make_run):
    run = make_run(steps=6)
    spikes = SpikeFilter(num_sigmas=6.0, window_steps=8)
    assert train(run, NotANumber(4), spikes=spikes).global_step == 6
    assert run.saved_steps() == [4, 6]
    assert int(spikes.num_skipped) == 1


def test_ten_steps_skipped_one_after_the_other_stop_the_run(make_run):
    run = make_run(steps=30)
    broken = [NotANumber(step) for step in range(3, 13)]
    with pytest.raises(EnvironmentProblem, match="Step 12 has loss"):
        train(run, *broken, spikes=SpikeFilter(num_sigmas=6.0, window_steps=8))


def test_steps_without_a_token_that_is_scored_are_no_harm_and_are_saved(make_run):
    def no_loss(project, hidden, targets):
        return CrossEntropy()(project, hidden, torch.full_like(targets, -100))

    run = make_run(steps=12)
    module = run.module()
    module.loss = no_loss
    budget, checkpoint = TokenBudget(context=run.context), Checkpoint(every_steps=6, context=run.context)
    health = TrainingHealth(every_steps=4, context=run.context)
    assert run.fit(health, budget, checkpoint, module=module).global_step == 12
    assert run.saved_steps() == [6, 12]


def test_a_hundred_steps_without_a_token_that_is_scored_teach_nothing(make_run):
    health = TrainingHealth(every_steps=4, context=make_run(steps=12).context)
    nothing = [StepRecord(step, float("nan"), 0.0, 0.1, num_tokens=0) for step in range(1, 101)]
    health._unseen = [*nothing[:99], StepRecord(100, 2.0, 1.0, 0.1), *nothing[:99]]
    health._look()
    health._unseen = [nothing[99]]
    with pytest.raises(DataError, match="Steps 1 to 100 have no token with loss: nothing is learned"):
        health._look()
