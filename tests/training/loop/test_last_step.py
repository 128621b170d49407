import pytest

from lmtrain.training.intervals import LastStep


@pytest.mark.parametrize(("spent", "expected"), [(0.0, 110), (50.0, 60), (99.5, 10), (100.0, 10), (1000.0, 10)])
def test_the_last_step_is_the_last_within_the_time(spent, expected):
    last_step = LastStep(5, seconds=100.0)
    assert last_step.reestimate(step=10, spent_seconds=spent, seconds_per_step=1.0) == expected


def test_another_budget_that_ends_sooner_wins():
    last_step = LastStep(5, seconds=100.0, most_steps=40)
    assert last_step.reestimate(step=10, spent_seconds=0.0, seconds_per_step=1.0) == 40


def test_without_a_limit_of_time_it_stays():
    assert LastStep(5).reestimate(step=10, spent_seconds=0.0, seconds_per_step=1.0) == 5
