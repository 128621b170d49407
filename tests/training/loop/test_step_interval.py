from types import SimpleNamespace

import pytest

from lmtrain.training.intervals import LastStep, StepInterval


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
